"""Nodes on one switch, from what `scontrol show topology` really printed."""

from __future__ import annotations

from pathlib import Path

from unicron_hpc.slurm.topology import parse_topology

#: Slurm 22.05.8 with TopologyPlugin=topology/tree: three levels, one switch of a single node.
TREE = (Path(__file__).parents[1] / "fixtures/slurm-22.05.8/show_topology.txt").read_text()


def test_each_leaf_switch_is_a_failure_domain_and_higher_switches_are_none() -> None:
    assert parse_topology(TREE) == (
        ("rack1-n1", "rack1-n2", "rack1-n3", "rack1-n4"),
        ("rack2-n01", "rack2-n02", "rack2-n03", "rack2-n04"),
        ("gpu8", "gpu9", "gpu10", "login9"),
        ("gpu11",),
    )


def test_a_cluster_without_described_switches_has_no_domains() -> None:
    # With topology/none scontrol prints nothing, complains on stderr and ends with 0.
    assert parse_topology("") == ()


def test_a_switch_without_nodes_is_left_out() -> None:
    assert parse_topology(
        "SwitchName=s0 Level=0 LinkSpeed=1 \nSwitchName=s1 Level=0 LinkSpeed=1 Nodes=n1\n"
    ) == (("n1",),)
