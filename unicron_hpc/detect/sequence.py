"""Reports of a failure written down as a list, and the verdict on them in the same form."""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Mapping
from typing import Any

from unicron_hpc.detect.exceptions import UNKNOWN_EXCEPTION
from unicron_hpc.detect.exits import HOST_MEMORY, explain_exit, signal_of
from unicron_hpc.detect.log_places import sequence_in
from unicron_hpc.detect.log_scan import LogScan
from unicron_hpc.detect.naming import operation_in
from unicron_hpc.detect.reports import Report, Sign, Structure, Verdict
from unicron_hpc.detect.severity import (
    LOST_CONNECTION,
    NOT_ANSWERING,
    SLOW,
    WANTED_END,
    WANTED_ENDS,
    Blame,
    Finding,
    Severity,
)
from unicron_hpc.detect.table import Table, table_in_use
from unicron_hpc.errors import UnicronError

#: Events that say: no sign of life, of progress or of an answer.
_SILENT = re.compile(
    r"silen|no_|hang|hung|stall|stuck|stopped|sigstop|deadlock|freez|frozen|unrespons|\bgil(?:\b|_)|heartbeat_(?:lost|missed)"
    r"|not_?respond",
    re.IGNORECASE,
)
_MEMORY = re.compile(r"\boom|oom_?kill", re.IGNORECASE)
_NODE_LOST = re.compile(
    r"(?:node|agent|coordinator)[_ ]?(?:lost|down|fail|dead|gone|reboot)|lost_?(?:connection|node)"
    r"|reboot|power(?:ed)?[_ ]?off",
    re.IGNORECASE,
)
#: An earlier failure that was mended by a new process; reports without an event are of such ones.
_RESTARTED = re.compile(r"(?:rank|process|worker)?[ _]?restart(?:ed)?", re.IGNORECASE)
#: Ends that somebody wanted.
_WANTED = re.compile(r"scancel|(?<![a-z])cancell?ed|preempt|requeue|time[ _]?limit", re.IGNORECASE)
#: What was taken note of while others failed.
_NOTED = re.compile(
    r"stack[ _]?(?:dump|trace)|^stacks?$|^dump|py-?spy|faulthandler"
    r"|^(?!(?:.*[_ ])?(?:not|never|no|fail\w*|fault|error|hang|stall|slow\w*|crash|los[st])[_ ])"
    r"(?:\w+[_ ])?(?:start(?:ed)?|joined|launched|spawned"
    r"|finish(?:ed)?|completed?|succeeded|done|saved|loaded)$",
    re.IGNORECASE,
)
_NOTE = Finding("taken note of", Severity.INFO, Blame.NOBODY)
_SLOW = re.compile(r"\bslow|straggl", re.IGNORECASE)
_HEARTBEAT = re.compile(r"heart_?beat", re.IGNORECASE)
#: A sign of life of somebody who was thought lost.
_ALIVE = re.compile(
    r"(?:heart_?beat|progress|step|iteration)(?:[_ ](?:ok|received|back|again|resumed|restored|done))?"
    r"|(?:rank|node|process)?[_ ]?(?:alive|resumed|recovered|woke(?:_up)?|sigcont|responding|continued)"
    r"|(?:back|alive)[_ ](?:again|online)",
    re.IGNORECASE,
)
#: How people call what the table knows by its text.
_CALLED = {
    re.compile(words, re.IGNORECASE): text
    for words, text in (
        (r"kernel[_ ]?panic", "Kernel panic - not syncing"),
        (r"(?:cuda|gpu)[_ ]?oom", "CUDA out of memory"),
        (r"ecc(?:[_ ]?(?:uncorrect(?:able|ed)|dbe|double.?bit))?", "uncorrectable ECC error encountered"),
        (r"gpu[_ ](?:lost|gone|f[ea]ll.*bus)", "GPU has fallen off the bus"),
        (r"peer[_ ]?(?:lost|gone|died|dead|reset|closed)", "Connection closed by peer"),
    )
}
_XID = re.compile(r"xid[ _:]*(?P<number>\d{1,4})", re.IGNORECASE)
_SECTION_OVER = {"section_end", "section over", "section_over", "section_done"}
#: Sections of ordinary work: they excuse no silence, and end those that do.
_ORDINARY = re.compile(
    r"(?:train(?:ing)?|iteration|step|forward|backward|optimizer|compute|idle)"
    r"(?:[_ -](?:step|loop|iteration|pass))?",
    re.IGNORECASE,
)
#: `1:0`, `0:9`: exit code and signal as Slurm writes them.
_SLURMS_CODE = re.compile(r"(?P<code>\d{1,3}):(?P<signal>\d{1,3})", re.ASCII)
#: Other usual names of what a report holds, and what it must have at least one of.
_NAMES = {
    "time": "t", "timestamp": "t", "global_rank": "rank", "host": "node", "hostname": "node",
    "exception": "exc", "exit_code": "code", "exitcode": "code", "returncode": "code",
}  # fmt: skip
_TELLING = ("rank", "node", "event", "exc", "code", "signal", "xid")
_KNOWN = {*_TELLING, "t", "arrival", "seq", "group", "name", "state", "pci"}
_LARGEST_RANK = 10**9
#: Signals with which a process is asked to end.
_ASKED = {signal.SIGHUP, signal.SIGINT, signal.SIGTERM}
_STOPPED = {signal.SIGSTOP, signal.SIGTSTP}
_SIGNALS = {number.name.removeprefix("SIG"): int(number) for number in signal.Signals}
_SIGNALS["SEGFAULT"] = int(signal.SIGSEGV)


def read_report(entry: Mapping[str, Any], table: Table | None = None) -> Report:
    """A report from its written form.

    Parameters
    ----------
    entry
        `t` (seconds), `rank`, `node`, `event`, and by event `signal`, `code`, `exc`, `name`, `xid`; `arrival`
        where it was heard later; `seq` and `group` of a collective.

    Raises
    ------
    UnicronError
        For values that are none.
    """
    table = table or table_in_use()
    entry = _with_known_names(entry)
    rank, when = _whole(entry, "rank"), _number(entry, "t")
    if rank is not None and not 0 <= rank <= _LARGEST_RANK:
        raise UnicronError(f"rank: there is no rank {entry['rank']}")
    node, event = _text(entry, "node"), _text(entry, "event")
    sign, finding, vague, detail = _meaning(entry, event, table)
    if sign in (Sign.SILENT, Sign.DEATH) and rank is None and not node:
        raise UnicronError(
            f"rank: missing, and {event or 'this'!r} is about one",
            hint='write {"t": 0.0, "rank": 1, "event": "silent"}, or "node" for a whole node',
        )
    sequence, group = sequence_in(detail)
    told = _whole(entry, "seq")
    return Report(
        0.0 if when is None else when,
        sign,
        rank,
        node,
        finding,
        vague,
        _number(entry, "arrival"),
        sequence if told is None else told,
        str(entry.get("group") or group or ""),
        detail,
        operation_in(detail),
    )


def _meaning(entry: Mapping[str, Any], event: str, table: Table) -> tuple[Sign, Finding | None, bool, str]:
    text = _raised(_lines_of(entry, "exc"), table)
    if text:
        row = table.find(text, exception=True)
        if row and row.error in WANTED_ENDS:
            return Sign.ENDED, WANTED_END, True, text
        sign = Sign.ENDED if row and row.severity == "INFO" and row.collateral else Sign.FAULT
        return sign, row.finding if row else UNKNOWN_EXCEPTION, row.vague if row else True, text
    named = _XID.fullmatch(event)
    if xid := int(named["number"]) if named else _whole(entry, "xid"):
        row = table.find(
            f"NVRM: Xid (PCI:{entry.get('pci') or '0000:00:00'}): {xid}, {entry.get('name') or ''}"
        )
        return Sign.FAULT, row.finding if row else None, False, f"Xid {xid}"
    if event == "section":
        name = str(entry.get("name") or "")
        over = str(entry.get("state") or "") in {"end", "over", "done"} or _ORDINARY.fullmatch(name)
        return (Sign.SECTION_OVER if over else Sign.SECTION), None, False, name
    if event in _SECTION_OVER:
        return Sign.SECTION_OVER, None, False, str(entry.get("name") or "")
    if _MEMORY.search(event):
        return Sign.MEMORY_KILL, HOST_MEMORY, False, event
    status = _status(entry, event)
    if status is not None:
        number = signal_of(status)
        if number in _STOPPED:
            return Sign.SILENT, NOT_ANSWERING, False, event
        if number in _ASKED or status == 0:
            return Sign.ENDED, explain_exit(status), True, event
        # An abort is how a process ends over an error that it has written somewhere else.
        vague = number is None or number == signal.SIGABRT
        return (Sign.FAULT if number is None else Sign.DEATH), explain_exit(status), vague, event
    if not event or _RESTARTED.fullmatch(event):
        return Sign.RESTART, None, True, ""
    if _WANTED.search(event):
        return Sign.ENDED, WANTED_END, True, event
    if _NOTED.search(event):
        return Sign.FAULT, _NOTE, False, event
    if _NODE_LOST.search(event):
        return Sign.FAULT, LOST_CONNECTION, False, event
    if _ALIVE.fullmatch(event):
        return Sign.ALIVE, None, False, event
    if _HEARTBEAT.search(event):
        return _silence(entry, event)
    text = next((text for words, text in _CALLED.items() if words.fullmatch(event)), event)
    if row := table.find(text, exception=True) or table.find(event.replace("_", " "), exception=True):
        return Sign.FAULT, row.finding, row.vague, event
    if _SLOW.search(event):
        return Sign.FAULT, SLOW, False, event
    if _SILENT.search(event):
        return _silence(entry, event)
    return Sign.FAULT, None, True, event


def _raised(text: str, table: Table) -> str:
    """The exception at the root of a traceback; any other text as it is."""
    if "Traceback (most" not in text:
        return text
    scanner = LogScan("", table=table)
    for number, line in enumerate(text.splitlines(), start=1):
        scanner.feed(line.encode("utf-8", "replace"), number)
    found = scanner.finish()
    return next((f.text for f in found if not f.rule.collateral), found[0].text if found else text)


def _silence(entry: Mapping[str, Any], event: str) -> tuple[Sign, Finding, bool, str]:
    # A node of which nothing is heard, and not one of its ranks, is lost.
    whole = entry.get("rank") is None and bool(entry.get("node"))
    return Sign.SILENT, LOST_CONNECTION if whole else NOT_ANSWERING, False, event


def _status(entry: Mapping[str, Any], event: str) -> int | None:
    """How a process ended: its exit code, or minus the signal's number; None where it is not told."""
    name = entry.get("signal")
    if name is None and event.upper().removeprefix("SIG") in _SIGNALS:
        name = event
    if isinstance(name, str) and not _plain_number(name):
        number = _SIGNALS.get(name.upper().removeprefix("SIG"))
        if number is None:
            raise UnicronError(f"signal: {name!r} is none", hint="write its number or a name such as SIGKILL")
        return -number
    number = _whole(entry, "signal")
    if number:  # 0 is what programs write where there was none
        if abs(number) > signal.SIGRTMAX:
            raise UnicronError(f"signal: {number} is none", hint="write its number or a name such as SIGKILL")
        return -abs(number)
    code = entry.get("code")
    if isinstance(code, str) and (slurms := _SLURMS_CODE.fullmatch(code)):
        return -int(slurms["signal"]) or int(slurms["code"])
    return _whole(entry, "code")


def read_structure(data: Mapping[str, Any]) -> Structure:
    """Which ranks share a group (`groups`: lists of ranks) and where they run (`nodes`: rank to node).

    Raises
    ------
    UnicronError
        For anything else.
    """
    try:
        groups = tuple(tuple(int(rank) for rank in group) for group in data.get("groups") or ())
        nodes = {int(rank): str(node) for rank, node in dict(data.get("nodes") or {}).items()}
    except (TypeError, ValueError) as error:
        raise UnicronError(
            f"not a structure of ranks: {error}",
            hint='write {"groups": [[0, 1], [2, 3]], "nodes": {"0": "n1"}, "reports": [...]}',
        ) from error
    return Structure(groups, nodes)


def verdict_as_data(verdict: Verdict) -> dict[str, Any]:
    """The verdict for JSON, with `suspect`, `victims`, `collateral`, `action` and what they rest on."""
    finding = verdict.finding
    return {
        "suspect": list(verdict.suspects),
        "victims": list(verdict.victims),
        "collateral": list(verdict.collateral),
        "suspect_node": verdict.suspect_node or None,
        "suspect_nodes": list(verdict.suspect_nodes),
        "action": verdict.action.value,
        "drain": verdict.drain,
        "cause": _cause_word(finding),
        "error": finding.error if finding else None,
        "severity": finding.severity.name if finding else None,
        "blame": finding.blame.value if finding else None,
        "evidence": list(verdict.evidence),
    }


def _cause_word(finding: Finding | None) -> str | None:
    """The cause as one word for programs; want of host memory has its usual one."""
    if finding is None:
        return None
    if finding.error == HOST_MEMORY.error:
        return "host_oom"
    return re.sub(r"\W+", "_", finding.error.lower()).strip("_")


def _number(entry: Mapping[str, Any], key: str) -> float | None:
    value = entry.get(key)
    if isinstance(value, str) and _plain_number(value):
        value = float(value)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UnicronError(f"{key}: expected a number, found {value!r}")
    return float(value)


def _plain_number(text: str) -> bool:
    """Whether a text is a number: what comes from environment variables or shells is written so."""
    return re.fullmatch(r"\s*[+-]?\d{1,15}(?:\.\d{1,15})?\s*", text, re.ASCII) is not None


def _with_known_names(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """The report with our names for what others call otherwise; refused where it says nothing."""
    named = {key: value for key, value in entry.items() if key in _KNOWN}
    for key, value in entry.items():
        name = _NAMES.get(key.lower(), key.lower())
        if named.get(name) is None:
            named[name] = value
    unknown = [key for key in named if key not in _KNOWN]
    if unknown and all(named.get(name) is None for name in _TELLING):
        raise UnicronError(
            f"says nothing that is known: it has only {', '.join(sorted(map(repr, unknown)))}",
            hint='write {"t": 0.0, "rank": 1, "event": "silent"}',
        )
    return named


def _lines_of(entry: Mapping[str, Any], key: str) -> str:
    """A text; a traceback may be a list of its lines."""
    value = entry.get(key)
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(line.rstrip("\n") for line in value)
    return _text(entry, key)


def _text(entry: Mapping[str, Any], key: str) -> str:
    value = entry.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise UnicronError(f"{key}: expected a text, found {value!r}")
    return value


def _whole(entry: Mapping[str, Any], key: str) -> int | None:
    value = _number(entry, key)
    if value is None:
        return None
    if value != int(value):
        raise UnicronError(f"{key}: expected a whole number, found {value!r}")
    return int(value)
