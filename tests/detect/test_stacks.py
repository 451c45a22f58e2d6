"""Reading `faulthandler`'s dumps."""

from __future__ import annotations

import faulthandler
import os
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unicron_hpc.detect.stacks import Frame, compiles, stack, waits_for_peer

few = settings(max_examples=100, deadline=None)


def dump() -> str:
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file=file, all_threads=True)
        file.seek(0)
        return file.read().decode()


def test_a_real_dump_says_where_each_thread_is() -> None:
    both = threading.Barrier(2, timeout=10.0)

    def wait() -> None:
        both.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        while not both.n_waiting:  # from then on it is inside
            os.sched_yield()
        text = dump()
    finally:
        both.wait()
        thread.join()
    own = stack(text, threading.get_ident())[0]
    assert (Path(own.file).name, own.function) == ("test_stacks.py", "dump")
    other = stack(text, thread.ident or 0)
    assert Path(other[0].file).name == "threading.py"
    assert "wait" in {frame.function for frame in other if frame.file == own.file}
    assert stack(text, 1) == ()


def test_of_several_dumps_the_last_counts() -> None:
    one = 'Thread 0x00ab (most recent call first):\n  File "{}", line {} in f\n  File "outer", line 1 in g\n'
    assert stack(one.format("a", 1) + one.format("b", 2), 0xAB) == (
        Frame("b", 2, "f"),
        Frame("outer", 1, "g"),
    )


@few
@given(st.text(), st.integers(0, 2**64))
def test_any_text_is_read_without_an_error(text: str, ident: int) -> None:
    assert not stack(text, ident) or text


@few
@given(st.data())
def test_a_damaged_dump_names_no_place_that_it_does_not_contain(data: st.DataObject) -> None:
    text = f'Current thread 0x{7:016x} (most recent call first):\n  File "/a/b.py", line 12 in work\n'
    at = data.draw(st.integers(0, len(text) - 1))
    damaged = text[:at] + data.draw(st.text(max_size=3)) + text[at + 1 :]
    assert all(frame.file in damaged and str(frame.line) in damaged for frame in stack(damaged, 7))


@pytest.mark.parametrize(
    ("file", "source", "waits"),
    [
        ("/lib/torch/distributed/distributed_c10d.py", "", True),
        ("/lib/megatron/core/pipeline_parallel/p2p_communication.py", "", True),
        ("/lib/megatron/core/tensor_parallel/layers.py", "    handle.wait()", True),
        ("/lib/megatron/core/tensor_parallel/layers.py", "    output = torch.matmul(a, b)", False),
        ("/home/me/model.py", "    dist.all_gather_into_tensor(out, x)", True),
        ("/home/me/data.py", "    return self.file.read(n)", False),
        ("/usr/lib/python3.11/threading.py", "                waiter.acquire()", False),
        ("/usr/lib/python3.11/socket.py", "        return self._sock.recv_into(b)", False),
    ],
)
def test_waiting_for_a_peer_is_known_by_file_or_by_line(file: str, source: str, waits: bool) -> None:
    assert waits_for_peer(Frame(file, 1, "f"), source) is waits


def test_a_compiler_anywhere_in_the_stack_is_known() -> None:
    model = Frame("/home/me/model.py", 1, "forward")
    assert compiles(
        [Frame("/usr/lib/python3.11/ast.py", 1, "f"), Frame("/lib/torch/_inductor/x.py", 1, "g"), model]
    )
    assert not compiles([Frame("/lib/torch/nn/modules/linear.py", 1, "forward"), model])
