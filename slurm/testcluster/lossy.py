"""A network link that loses packets: rules in one process's network namespace (needs root)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from testcluster import packages
from testcluster.errors import ClusterError

#: The only network device of a container but the loopback.
_DEVICE = "eth0"


def set_loss(pid: int, percent: float, where: str) -> str:
    """Have a namespace lose a part of its packets, at random, until it is set again; 0 for none.

    tc's netem drops what the node sends. Kernels without it have iptables drop what the node receives: for a
    connection, whose every packet is acknowledged, that is the same.

    Parameters
    ----------
    pid
        A process in the network namespace.
    percent
        From 0 to 100.
    where
        The node, for errors.

    Returns
    -------
    str
        What does it: `netem` or `iptables`; empty for no loss.
    """
    if not 0 <= percent <= 100:
        raise ClusterError("must lie between 0 and 100", where=f"--percent {percent:g}")
    if os.geteuid() != 0:
        raise ClusterError("only root can make a link lose packets", where=where)
    clear(pid)
    if percent == 0:
        return ""
    words = ["tc", "qdisc", "add", "dev", _DEVICE, "root", "netem", "loss", f"{percent:g}%"]
    refusal = _inside(pid, words)
    if not refusal:
        return "netem"
    for program in ("iptables", "iptables-legacy"):
        chance = f"{percent / 100:.6f}"
        rule = ["-A", "INPUT", "-i", _DEVICE, "-m", "statistic", "--mode", "random", "--probability", chance]
        other = _inside(pid, [program, *rule, "-j", "DROP"])
        if not other:
            return "iptables"
        refusal += f"\n{other}"
    hint = "The kernel needs CONFIG_NET_SCH_NETEM or CONFIG_NETFILTER_XT_MATCH_STATISTIC."
    raise ClusterError(f"this machine can make no link lose packets: {refusal}", where=where, hint=hint)


def clear(pid: int) -> None:
    """Let nothing be lost any more; does nothing where nothing is."""
    _inside(pid, ["tc", "qdisc", "del", "dev", _DEVICE, "root"])
    for program in ("iptables", "iptables-legacy"):
        _inside(pid, [program, "-F", "INPUT"])


def _inside(pid: int, words: Sequence[str]) -> str:
    """Run a program of this machine in the namespace; return '' or why it did not work."""
    program = packages.program(words[0])
    if not program:
        return f"{words[0]}: not installed"
    command = [packages.program("nsenter"), f"--target={pid}", "--net", program, *words[1:]]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=30, check=False, stdin=subprocess.DEVNULL
    )
    return "" if done.returncode == 0 else f"{words[0]}: {done.stderr.strip() or done.returncode}"
