"""Node states as scontrol and sinfo write them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.slurm.field_cases import cases
from unicron_hpc.slurm.states import NODE_BASES, NODE_FLAGS, parse_node_state


@pytest.mark.parametrize(("text", "expected"), cases("node_state"))
def test_node_states_from_the_field(text: str, expected: dict[str, Any]) -> None:
    state = parse_node_state(text)
    assert (state.base, list(state.flags)) == (expected["base"], expected["flags"])
    if "usable" in expected:
        assert state.usable == expected["usable"]


@pytest.mark.parametrize(
    ("text", "base", "responding", "usable", "draining"),
    [
        ("ALLOCATED", "ALLOCATED", True, True, False),
        ("MIXED", "MIXED", True, True, False),
        ("idle-", "IDLE", True, True, False),
        ("drng", "ALLOCATED", True, False, True),
        ("drained*", "IDLE", False, False, True),
        ("DOWN+NOT_RESPONDING", "DOWN", False, False, False),
        ("down$*", "DOWN", False, False, False),
        ("IDLE+CLOUD+POWERED_DOWN", "IDLE", False, False, False),
        ("MIXED+PLANNED", "MIXED", True, True, False),
        ("IDLE+SOMETHING_NEW", "IDLE", True, True, False),
        ("", "UNKNOWN", False, False, False),
    ],
)
def test_what_a_state_means_for_us(
    text: str, base: str, responding: bool, usable: bool, draining: bool
) -> None:
    state = parse_node_state(text)
    assert (state.base, state.responding, state.usable, state.draining) == (
        base,
        responding,
        usable,
        draining,
    )


@given(st.text())
def test_no_text_breaks_it(text: str) -> None:
    assert parse_node_state(text).base


def test_every_word_has_a_sentence() -> None:
    assert all(sentence.endswith(".") for sentence in (*NODE_BASES.values(), *NODE_FLAGS.values()))
