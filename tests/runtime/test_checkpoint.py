"""A checkpoint is the same whatever layout wrote it, and nothing broken is ever loaded."""

from __future__ import annotations

import os
import pickle
import resource
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from unicron_hpc.errors import ConfigError, UnicronError
from unicron_hpc.planner.layout import Layout, Replica, Seat, Stage
from unicron_hpc.planner.units import all_units, holders, units_of
from unicron_hpc.runtime.checkpoint import PendingSave, begin_save, finish_save, snapshot, units_to_write
from unicron_hpc.runtime.checkpoint_load import Wanted, load_units
from unicron_hpc.runtime.checkpoint_shards import writers
from unicron_hpc.runtime.manifest import (
    WrittenFile,
    describe_file,
    newest_whole,
    partial_name,
    publish,
    write_manifest,
)
from unicron_hpc.runtime.unit_state import Entry, UnitState

HIDDEN, FFN, VOCAB, LAYERS = 8, 16, 24, 5
MODEL = {"num_layers": LAYERS, "hidden_size": HIDDEN, "swiglu": False}
Key = tuple[str, int]


def layout(*depths: tuple[int, ...], tensor: int = 1) -> Layout:
    """A layout with one replica per argument, each given as its stages' numbers of layers."""
    replicas, rank = [], 0
    for number, layers_per_stage in enumerate(depths):
        stages, first = [], 0
        for layers in layers_per_stage:
            stages.append(Stage(first, first + layers - 1, tuple(range(rank, rank + tensor))))
            first, rank = first + layers, rank + tensor
        assert first == LAYERS
        replicas.append(Replica(tuple(stages), number, 1))
    return Layout(LAYERS, tensor, 1, tuple(replicas), tuple(Seat("n1", slot) for slot in range(rank)))


def global_entries(unit: str, gated: bool) -> dict[str, tuple[tuple[int, ...], int | None]]:
    """Name -> (global shape, partition dimension); fc1 of a gated unit as [2, ffn, hidden]."""
    if unit in ("word_embedding", "output"):
        return {"weight": ((VOCAB, HIDDEN), 0)}
    if unit == "final_norm":
        return {"weight": ((HIDDEN,), None), "bias": ((HIDDEN,), None)}
    return {
        "input_layernorm.weight": ((HIDDEN,), None),
        "self_attention.linear_qkv.weight": ((3 * HIDDEN, HIDDEN), 0),
        "self_attention.linear_qkv.bias": ((3 * HIDDEN,), 0),
        "self_attention.linear_proj.weight": ((HIDDEN, HIDDEN), 1),
        "mlp.linear_fc1.weight": ((2, FFN, HIDDEN), 1) if gated else ((FFN, HIDDEN), 0),
        "mlp.linear_fc2.weight": ((HIDDEN, FFN), 1),
    }


def true_state(unit: str, index: int, tensor: int, *, gated: bool = False, iteration: int = 50) -> UnitState:
    """The slice of a unit that a tensor rank holds, cut from weights that depend on the unit's name only."""
    generator = torch.Generator().manual_seed(sum(unit.encode()))
    entries, rows, offset = [], [], 0
    for name, (shape, dim) in global_entries(unit, gated).items():
        whole = torch.randn(3, *shape, generator=generator)
        part = whole if dim is None else whole.chunk(tensor, dim + 1)[index]
        if gated and name == "mlp.linear_fc1.weight":
            entries.append(Entry(name, (2 * FFN // tensor, HIDDEN), 0, offset, blocks=2))
        else:
            entries.append(Entry(name, tuple(part.shape[1:]), dim, offset))
        rows.append(part.reshape(3, -1))
        offset += rows[-1].shape[1]
    return UnitState(unit, index, tensor, tuple(entries), torch.cat(rows, 1), iteration)


def states_of(plan: Layout, rank: int, *, gated: bool = False) -> dict[Key, UnitState]:
    position = plan.position(rank)
    index = position.tensor_index
    units = units_of(position, tied=False, learned_positions=False)
    return {(unit, index): true_state(unit, index, plan.tensor, gated=gated) for unit in units}


def begin(partial: Path, plan: Layout, rank: int, *, gated: bool = False) -> PendingSave:
    held = holders(plan, tied=False, learned_positions=False)
    copies = snapshot(states_of(plan, rank, gated=gated), held, rank)
    return begin_save(partial, copies, rank=rank, holders=held, iteration=50)


def finish(partial: Path, plan: Layout, written: list[WrittenFile], *, iteration: int = 50) -> Path:
    held = holders(plan, tied=False, learned_positions=False)
    files = finish_save(partial, written, holders=held, common={"iteration": iteration, "model": MODEL})
    write_manifest(partial, iteration=iteration, files=files, layout_summary={}, common={"model": MODEL})
    return publish(partial)


def save(root: Path, plan: Layout, *, gated: bool = False) -> Path:
    """Save in one process, rank after rank."""
    partial = root / partial_name(50, 0)
    written = [
        file for rank in range(plan.world_size) for file in begin(partial, plan, rank, gated=gated).write()
    ]
    return finish(partial, plan, written)


def wanted_of(plan: Layout, rank: int, *, gated: bool = False) -> list[Wanted]:
    return [
        Wanted(s.unit, s.tensor_index, s.tensor, s.entries)
        for s in states_of(plan, rank, gated=gated).values()
    ]


def assert_loads(path: Path, plan: Layout, *, gated: bool = False) -> None:
    for rank in range(plan.world_size):
        loaded = load_units(path, wanted_of(plan, rank, gated=gated), model=MODEL)
        expected = states_of(plan, rank, gated=gated)
        assert loaded.keys() == expected.keys()
        for key, state in expected.items():
            assert torch.equal(loaded[key].flat, state.flat), key
            assert (loaded[key].iteration, loaded[key].entries) == (50, state.entries)


def in_child(work: Callable[[], bytes]) -> tuple[int, bytes]:
    """Run `work` in a forked process; its wait status and what it returned."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, work())
            os._exit(0)
        finally:
            os._exit(1)
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        answer = stream.read()
    return os.waitpid(pid, 0)[1], answer


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Written by four processes as two stages times two replicas; they never speak to each other."""
    plan = layout((2, 3), (2, 3))
    root = tmp_path_factory.mktemp("checkpoints")
    partial = root / partial_name(50, 0)
    written: list[WrittenFile] = []
    for rank in range(4):
        status, answer = in_child(lambda rank=rank: msgspec.json.encode(begin(partial, plan, rank).write()))  # type: ignore[misc]
        assert status == 0
        written += msgspec.json.decode(answer, type=list[WrittenFile])
    return finish(partial, plan, written)


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Path:
    """The same checkpoint, free to be damaged."""
    path = tmp_path / saved.name
    path.mkdir()
    for file in saved.iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    return path


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(layout((5,)), id="one stage"),
        pytest.param(layout((1, 3, 1)), id="three uneven stages"),
        pytest.param(layout((2, 3), (5,)), id="replicas of different depth"),
        pytest.param(layout((5,), tensor=2), id="tensor degree 2"),
        pytest.param(layout((4, 1), tensor=4), id="tensor degree 4, two stages"),
    ],
)
def test_any_layout_loads_what_two_stages_and_two_replicas_saved(saved: Path, plan: Layout) -> None:
    assert_loads(saved, plan)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_a_checkpoint_of_tensor_degree_2_loads_at_any_degree(
    tmp_path: Path, tensor: int, gated: bool
) -> None:
    path = save(tmp_path, layout((3, 2), tensor=2), gated=gated)
    assert_loads(path, layout((5,), tensor=tensor), gated=gated)


def test_each_slice_is_written_once_and_replicas_share_the_work() -> None:
    plan = layout((2, 3), (2, 3), (5,), tensor=2)
    held = holders(plan, tied=True, learned_positions=True)
    chosen = writers(held)
    assert chosen.keys() == held.keys()
    assert all(rank in held[key] for key, rank in chosen.items())
    assert len(set(chosen.values())) == plan.world_size
    written = [key for rank in range(plan.world_size) for key in units_to_write(held, rank)]
    assert sorted(written) == sorted(held)


def test_megatron_itself_loads_the_checkpoint(saved: Path, tmp_path: Path) -> None:
    from megatron.core import dist_checkpointing

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        tensors = dist_checkpointing.load_plain_tensors(str(saved))
        common = dist_checkpointing.load_common_state_dict(str(saved))
    finally:
        torch.distributed.destroy_process_group()
    assert common == {"iteration": 50, "model": MODEL}
    for unit in all_units(LAYERS, tied=False, learned_positions=False):
        state = true_state(unit, 0, 1)
        for row, suffix in enumerate(("weight", "exp_avg", "exp_avg_sq")):
            for entry, view in state.views(row):
                assert torch.equal(tensors.pop(f"{unit}.{entry.name}.{suffix}"), view)
    tensors.pop("iteration"), tensors.pop("model")
    assert not tensors


def test_only_the_files_that_are_needed_are_read(copy: Path) -> None:
    """The first stage's ranks can load although the last stage's file is damaged; the last stage's cannot."""
    plan = layout((2, 3))
    last_stage_files = [copy / "__1_0.distcp", copy / "__3_0.distcp"]
    for path in last_stage_files:
        path.write_bytes(path.read_bytes()[:-100])
    load_units(copy, wanted_of(plan, 0))
    with pytest.raises(UnicronError, match=r"__1_0\.distcp: truncated, \d+ bytes found, \d+ expected"):
        load_units(copy, wanted_of(plan, 1))


@pytest.mark.parametrize("name", ["__0_0.distcp", "__2_0.distcp", ".metadata", "manifest.json"])
def test_a_flipped_bit_is_found_and_the_file_named(copy: Path, name: str) -> None:
    data = bytearray((copy / name).read_bytes())
    data[len(data) // 2] ^= 4
    (copy / name).write_bytes(bytes(data))
    with pytest.raises(UnicronError, match=name.removesuffix(".json")):
        load_units(copy, wanted_of(layout((5,)), 0))


def test_a_missing_file_is_named(copy: Path) -> None:
    (copy / "__0_0.distcp").unlink()
    with pytest.raises(UnicronError, match=r"__0_0\.distcp"):
        load_units(copy, wanted_of(layout((5,)), 0))


def test_another_model_is_refused_by_argument_and_by_shape(saved: Path) -> None:
    with pytest.raises(ConfigError, match=r"hidden_size: checkpoint has 8, train\.yaml has 16"):
        load_units(saved, [], model={**MODEL, "hidden_size": 16})
    bigger = Wanted("final_norm", 0, 1, (Entry("weight", (16,), None, 0),))
    with pytest.raises(
        UnicronError, match=r"final_norm\.weight\.weight has shape \[8\] in the checkpoint, \[16\]"
    ):
        load_units(saved, [bigger])
    with pytest.raises(UnicronError, match=r"no layer\.9\.a\.weight"):
        load_units(saved, [Wanted("layer.9", 0, 1, (Entry("a", (1,), None, 0),))])


class _Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (os.environ["UNICRON_TEST_EVIL"],)


def test_metadata_that_would_run_code_is_refused(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNICRON_TEST_EVIL", str(tmp_path / "evil"))
    (copy / ".metadata").write_bytes(pickle.dumps(_Evil()))
    write_manifest(
        copy,
        iteration=50,
        files=[describe_file(copy / ".metadata")],
        layout_summary={},
        common={"model": MODEL},
    )
    with pytest.raises(UnicronError, match=r"posix\.mkdir does not belong there"):
        load_units(copy, [])
    assert not (tmp_path / "evil").exists()


def test_a_rank_that_did_not_write_is_noticed(tmp_path: Path) -> None:
    plan = layout((2, 3))
    partial = tmp_path / partial_name(50, 0)
    with pytest.raises(UnicronError, match=r"is missing: final_norm .*layer\.2"):
        finish(partial, plan, list(begin(partial, plan, 0).write()))
    assert newest_whole(tmp_path)[0] is None


def test_slices_that_do_not_fill_their_tensor_are_noticed(tmp_path: Path) -> None:
    plan = layout((5,), tensor=2)
    partial = tmp_path / partial_name(50, 0)
    written = list(begin(partial, plan, 0).write())
    table = next(file for file in written if file.name.endswith(".json"))
    forged = (partial / table.name).read_bytes().replace(b'",0]', b'",1]')
    (partial / "__1.shards.json").write_bytes(forged)
    written.append(describe_file(partial / "__1.shards.json"))
    with pytest.raises(UnicronError, match="do not fit together"):
        finish(partial, plan, written)


def test_half_a_tensor_from_a_single_writer_is_noticed(tmp_path: Path) -> None:
    plan = layout((5,), tensor=2)
    partial = tmp_path / partial_name(50, 0)
    written = begin(partial, plan, 0).write()
    half = {
        key: ranks for key, ranks in holders(plan, tied=False, learned_positions=False).items() if key[1] == 0
    }
    with pytest.raises(UnicronError, match="do not fit together"):
        finish_save(partial, written, holders=half, common={})


def test_a_damaged_table_is_noticed(tmp_path: Path) -> None:
    plan = layout((5,))
    partial = tmp_path / partial_name(50, 0)
    written = list(begin(partial, plan, 0).write())
    (partial / "__0.shards.json").write_bytes(b"{}")
    with pytest.raises(UnicronError, match="table of shards was damaged"):
        finish(partial, plan, written)


def test_state_of_another_iteration_or_of_nobody_is_not_saved(tmp_path: Path) -> None:
    plan = layout((5,))
    held = holders(plan, tied=False, learned_positions=False)
    states = states_of(plan, 0)
    with pytest.raises(UnicronError, match=r"contains iteration 50, not 51"):
        begin_save(tmp_path, states, rank=0, holders=held, iteration=51)
    del states[("layer.3", 0)]
    with pytest.raises(UnicronError, match=r"layer\.3 \(tensor index 0\) is not held"):
        snapshot(states, held, 0)


def test_a_snapshot_does_not_change_with_training_and_its_memory_can_be_used_again() -> None:
    plan = layout((5,))
    held = holders(plan, tied=False, learned_positions=False)
    states = states_of(plan, 0)
    first = snapshot(states, held, 0)
    before = {key: state.digest() for key, state in first.items()}
    for state in states.values():
        state.flat += 1
    assert {key: state.digest() for key, state in first.items()} == before
    second = snapshot(states, held, 0, reuse=first)
    assert {key: state.digest() for key, state in second.items()} == {
        k: s.digest() for k, s in states.items()
    }
    assert all(second[key].flat.data_ptr() == first[key].flat.data_ptr() for key in first)


def test_files_are_private(saved: Path) -> None:
    assert {oct(path.stat().st_mode & 0o777) for path in saved.iterdir()} == {"0o600"}
    assert saved.stat().st_mode & 0o777 == 0o700


def _die_at_byte(size: int) -> None:
    """From now on the kernel kills this process in the middle of the write that passes `size`."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)


@pytest.mark.parametrize("size", [0, 10_000])
def test_a_disk_that_refuses_is_an_error_that_names_the_folder(tmp_path: Path, size: int) -> None:
    def work() -> bytes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        try:
            begin(tmp_path / partial_name(50, 0), layout((5,)), 0).write()
        except UnicronError as error:
            return str(error).encode()
        return b"written"

    status, answer = in_child(work)
    assert status == 0
    assert answer.decode().startswith(f"{tmp_path}/iter_0000050.partial-0: rank 0 cannot write its part")


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stages(root: Path, after: str) -> Iterator[str]:
    plan = layout((5,))
    partial = root / partial_name(60, 1)
    held = holders(plan, tied=False, learned_positions=False)
    states: Mapping[Key, UnitState] = states_of(plan, 0)
    for state in states.values():
        state.iteration = 60
    written = begin_save(partial, states, rank=0, holders=held, iteration=60).write()
    yield "write"
    files = finish_save(partial, written, holders=held, common={})
    yield "finish"
    write_manifest(partial, iteration=60, files=files, layout_summary={}, common={"model": MODEL})
    yield "manifest"
    publish(partial)
    yield "publish"


@pytest.mark.parametrize("moment", [0, 1, 4096, 20_000, "write", "finish", "manifest", "publish"])
def test_a_writer_killed_at_any_moment_leaves_the_earlier_checkpoint_in_force(
    saved: Path, copy: Path, moment: int | str
) -> None:
    def work() -> bytes:
        if isinstance(moment, int):
            _die_at_byte(moment)
        for reached in _stages(copy.parent, str(moment)):
            if reached == moment:
                _die()
        return b"survived"

    status, answer = in_child(work)
    assert os.WIFSIGNALED(status)
    assert answer == b""
    found, skipped = newest_whole(copy.parent)
    assert found is not None
    if moment == "publish":
        assert (found.iteration, skipped) == (60, ())
    else:
        assert found.path == copy
        assert [(path.name, "half-written" in why) for path, why in skipped] == [(partial_name(60, 1), True)]
        assert_loads(found.path, layout((5,)))
