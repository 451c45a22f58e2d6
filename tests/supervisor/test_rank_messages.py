"""Frames between an agent and its ranks, over a real socket pair."""

from __future__ import annotations

import socket
import struct
import threading
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.supervisor.examples import few
from tests.supervisor.structs import of
from unicron_hpc.runtime.channel import AgentGone, Channel
from unicron_hpc.supervisor.rank_messages import (
    HEADER_BYTES,
    MAX_FRAME,
    Cut,
    FromRank,
    RankHello,
    Stop,
    ToRank,
    frame,
    frame_length,
    from_rank_decoder,
)

FROM_RANK = of(FromRank)
TO_RANK = of(ToRank)


@few
@given(FROM_RANK)
def test_what_a_rank_says_arrives_as_it_was_said(message: FromRank) -> None:
    data = frame(message)
    assert frame_length(data[:HEADER_BYTES]) == len(data) - HEADER_BYTES
    assert from_rank_decoder.decode(data[HEADER_BYTES:]) == message


def test_every_kind_of_message_has_a_name_of_its_own() -> None:
    kinds = [*typing.get_args(FromRank), *typing.get_args(ToRank)]
    tags = [kind.__struct_config__.tag for kind in kinds]
    assert len(set(tags)) == len(kinds)


@few
@given(st.lists(TO_RANK, max_size=4), st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_orders_arrive_in_order_however_the_stream_is_cut(orders: list[ToRank], pieces: list[int]) -> None:
    ours, theirs = socket.socketpair()
    stream = b"".join(map(frame, orders))

    def trickle() -> None:
        at = 0
        for turn in range(len(stream)):
            size = pieces[turn % len(pieces)]
            ours.sendall(stream[at : at + size])
            at += size
            if at >= len(stream):
                break
        ours.close()

    sender = threading.Thread(target=trickle)
    sender.start()
    channel = Channel(theirs)
    assert [channel.receive() for _ in orders] == orders
    with pytest.raises(AgentGone):
        channel.receive()
    sender.join()
    theirs.close()


def test_a_frame_longer_than_any_of_ours_is_refused_before_it_is_read() -> None:
    assert frame_length(struct.pack("!I", MAX_FRAME)) == MAX_FRAME
    with pytest.raises(ValueError, match="longer than"):
        frame_length(struct.pack("!I", MAX_FRAME + 1))


def test_an_end_in_the_middle_of_a_frame_means_that_the_agent_is_gone() -> None:
    ours, theirs = socket.socketpair()
    ours.sendall(frame(Cut(3))[:-1])
    ours.close()
    with pytest.raises(AgentGone):
        Channel(theirs).receive()
    theirs.close()


def test_speaking_to_an_agent_that_is_gone_says_so() -> None:
    ours, theirs = socket.socketpair()
    ours.close()
    with pytest.raises(AgentGone):
        Channel(theirs).send(RankHello(1))
    theirs.close()


def test_threads_do_not_mix_their_frames() -> None:
    ours, theirs = socket.socketpair()
    rank, agent = Channel(theirs), Channel(ours)
    texts = [str(n) * 50_000 for n in range(4)]
    speakers = [
        threading.Thread(target=lambda t=t: [rank.send(Stop(t)) for _ in range(5)])  # type: ignore[misc]
        for t in texts
    ]
    for speaker in speakers:
        speaker.start()
    heard = [agent.receive() for _ in range(20)]
    for speaker in speakers:
        speaker.join()
    assert sorted(m.reason[0] for m in heard if isinstance(m, Stop)) == sorted("0123" * 5)
    assert all(len(set(m.reason)) == 1 and len(m.reason) == 50_000 for m in heard if isinstance(m, Stop))
    ours.close()
    theirs.close()
