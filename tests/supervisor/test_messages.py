"""What agents say to each other."""

from __future__ import annotations

import typing

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.supervisor.examples import few
from tests.supervisor.structs import of
from unicron_hpc.supervisor.messages import Beat, Body, Envelope, VoteRequest, decode, encode

ENVELOPES = of(Envelope)


@few
@given(ENVELOPES)
def test_a_message_arrives_as_it_was_sent(envelope: Envelope) -> None:
    assert decode(encode(envelope)) == envelope


def test_every_kind_of_message_has_a_name_of_its_own() -> None:
    kinds = typing.get_args(Body)
    assert len({kind.__struct_config__.tag for kind in kinds}) == len(kinds)


@few
@given(st.binary(max_size=200))
@example(b"")
@example(b"\x80")
@example(b"\xc1")
@example(msgspec.msgpack.encode({"sender": "n1", "term": "one", "body": {"type": "Beat"}}))
@example(msgspec.msgpack.encode({"sender": "n1", "term": 1, "body": {"type": "Pickle"}}))
@example(msgspec.msgpack.encode({"sender": "n1", "term": 1, "body": {"type": "Vote", "granted": 1}}))
@example(b"\xa1\xff" + encode(Envelope("n1", 1, Beat(1))))
@example(b"\x84\xa1x" + b"\x91" * 2_000 + b"\xc0" + encode(Envelope("n1", 1, Beat(1)))[1:])
def test_garbage_is_refused_with_one_kind_of_error(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(data)


@few
@given(ENVELOPES, st.data())
def test_a_damaged_message_is_refused_or_read_as_another_never_a_crash(
    envelope: Envelope, data: st.DataObject
) -> None:
    whole = encode(envelope)
    at = data.draw(st.integers(0, len(whole) - 1))
    damaged = whole[:at] + bytes([data.draw(st.integers(0, 255))]) + whole[at + 1 :]
    for received in (damaged, whole[:at]):
        try:
            decoded = decode(received)
        except msgspec.DecodeError:
            continue
        assert isinstance(decoded, Envelope)


def test_a_message_with_fields_of_a_later_version_is_understood() -> None:
    known = {
        "sender": "n2",
        "term": 4,
        "body": {"type": "VoteRequest", "candidate": "n2", "epoch": 7, "mood": "good"},
    }
    assert decode(msgspec.msgpack.encode(known)) == Envelope("n2", 4, VoteRequest("n2", 7))
