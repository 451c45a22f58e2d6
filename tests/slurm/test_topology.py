"""Nodes on one switch, from what `scontrol show topology` prints (form of the topology.conf manual)."""

from __future__ import annotations

from unicron_hpc.slurm.topology import parse_topology

TREE = """\
SwitchName=s0 Level=0 LinkSpeed=1 Nodes=tux[0-2]
SwitchName=s1 Level=0 LinkSpeed=1 Nodes=tux[3-4],login
SwitchName=s2 Level=1 LinkSpeed=1 Nodes=tux[0-4],login Switches=s[0-1]
"""


def test_each_leaf_switch_is_a_failure_domain_and_higher_switches_are_none() -> None:
    assert parse_topology(TREE) == (("tux0", "tux1", "tux2"), ("tux3", "tux4", "login"))


def test_a_cluster_without_described_switches_has_no_domains() -> None:
    assert parse_topology("") == ()
    assert parse_topology("No topology information available\n") == ()


def test_a_switch_without_nodes_is_left_out() -> None:
    assert parse_topology(
        "SwitchName=s0 Level=0 LinkSpeed=1 \nSwitchName=s1 Level=0 LinkSpeed=1 Nodes=n1\n"
    ) == (("n1",),)
