"""Hostlists: Slurm's grammar, its order, and errors that name the offending part."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.slurm.field_cases import cases
from unicron_hpc.slurm.hostlists import HostlistError, expand, fold


@pytest.mark.parametrize(("text", "expected"), cases("hostlist"))
def test_hostlists_from_the_field_expand_in_order(text: str, expected: list[str]) -> None:
    assert list(expand(text)) == expected


@pytest.mark.parametrize(("text", "expected"), cases("hostlist_error"))
def test_a_broken_hostlist_is_refused_whole(text: str, expected: object) -> None:
    with pytest.raises(HostlistError) as caught:
        expand(text)
    assert repr(text) in str(caught.value)
    assert caught.value.part
    assert caught.value.part in text


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("n1,,n2", "n1,,n2"),
        ("n[1-2", "n[1-2"),
        ("n[]", "[]"),
        ("n[1,]", "[1,]"),
        ("n[1[2]]", "n[1["),
        ("n1,n[5-3],n2", "[5-3]"),
        ("a b", "a b"),
        ("n1!n2", "n1!n2"),
        ("@group", "@group"),
        ("n[1-9999999]", "n[1-9999999]"),
        ("-n1", "-n1"),
        ("n;reboot", "n;reboot"),
        ("n[1-99999999999999999999]", "[1-99999999999999999999]"),
    ],
)
def test_the_offending_part_is_named(text: str, part: str) -> None:
    with pytest.raises(HostlistError) as caught:
        expand(text)
    assert caught.value.part == part


def test_a_range_is_padded_to_the_width_of_its_lower_end() -> None:
    assert expand("n[8-11]") == ("n8", "n9", "n10", "n11")
    assert expand("n[08-9]") == ("n08", "n09")


def test_a_name_given_twice_counts_once() -> None:
    assert expand("n2,n[1-3],n2") == ("n2", "n1", "n3")


_NAME = st.from_regex(r"[a-z]{1,3}(-[a-z])?[0-9]{0,4}(-[0-9]{1,2})?", fullmatch=True)


# Folding is slow, and 60 lists show as much as 100.
@settings(max_examples=60, deadline=None)
@given(st.lists(_NAME, max_size=12, unique=True))
def test_folded_hosts_expand_to_the_same_hosts(names: list[str]) -> None:
    assert sorted(expand(fold(names))) == sorted(names)


@given(st.text(alphabet="an019[]-,. \n", max_size=12))
def test_any_text_expands_or_is_refused(text: str) -> None:
    try:
        hosts = expand(text)
    except HostlistError:
        return
    assert all(hosts)
    assert bool(hosts) == bool(text.strip())


def test_fold_refuses_what_is_no_host_name() -> None:
    with pytest.raises(HostlistError):
        fold(["n1", "n 2"])
