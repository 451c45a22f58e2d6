"""Process groups of one epoch: which ones a rank needs, building them, and telling Megatron about them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.process_groups_config import ProcessGroupCollection
from torch._C._distributed_c10d import HashStore, Store  # torch.distributed hides them from mypy

from unicron_hpc.planner.layout import Layout
from unicron_hpc.planner.units import UnitKey, holders

Ranks = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """Groups of a layout, and those of one rank.

    Attributes
    ----------
    members
        All ranks of the layout; the world may have senders beside them.
    to_build
        Every group of the layout but that of all members and single ranks, in the order in which all
        ranks go through them: two ranks that share two groups meet in the same order, so that none waits
        in one for a rank that waits in the other.
    pipeline, tensor
        This rank's pipeline in stage order, its tensor-parallel group in tensor order.
    holder_sets
        For each (unit, tensor index) of this rank: the ranks that hold it, ascending.
    """

    members: Ranks
    to_build: tuple[Ranks, ...]
    pipeline: Ranks
    tensor: Ranks
    holder_sets: dict[UnitKey, Ranks]


def plan_groups(layout: Layout, rank: int, *, tied: bool, learned_positions: bool) -> GroupPlan:
    """What the layout needs and what `rank` belongs to (pure); a sender belongs to none of it."""
    sets = holders(layout, tied=tied, learned_positions=learned_positions)
    pipelines = {
        (r, t): tuple(stage.ranks[t] for stage in replica.stages)
        for r, replica in enumerate(layout.replicas)
        for t in range(layout.tensor)
    }
    tensors = {stage.ranks for replica in layout.replicas for stage in replica.stages}
    whole = tuple(range(layout.world_size))
    every = {*pipelines.values(), *tensors, *sets.values()}
    to_build = tuple(sorted(ranks for ranks in every if len(ranks) > 1 and ranks != whole))
    if rank >= layout.world_size:
        return GroupPlan(whole, to_build, pipeline=(rank,), tensor=(rank,), holder_sets={})
    position = layout.position(rank)
    return GroupPlan(
        members=whole,
        to_build=to_build,
        pipeline=pipelines[position.replica, position.tensor_index],
        tensor=position.stage.ranks,
        holder_sets={key: ranks for key, ranks in sets.items() if rank in ranks},
    )


class SoloGroup:
    """A group of this process alone, the same through all epochs: it needs no peer and is never cut."""

    _group: dist.ProcessGroup | None = None

    @classmethod
    def get(cls) -> dist.ProcessGroup:
        """The group; made at first use, since a zygote must not own its threads."""
        if cls._group is None:
            store = HashStore()
            group = dist.ProcessGroup(store, 0, 1)
            backend = dist.ProcessGroupGloo(store, 0, 1, timeout=timedelta(minutes=5))
            group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend)
            cls._group = group
        return cls._group


@dataclass(slots=True)
class Groups:
    """The built groups of one rank in one epoch."""

    plan: GroupPlan
    world: dist.ProcessGroup
    by_ranks: dict[Ranks, dist.ProcessGroup]

    def of(self, ranks: Ranks) -> dist.ProcessGroup:
        """The group of exactly these ranks."""
        return SoloGroup.get() if len(ranks) == 1 else self.by_ranks[ranks]

    @property
    def members(self) -> dist.ProcessGroup:
        """All ranks that compute."""
        return self.of(self.plan.members)

    @property
    def pipeline(self) -> dist.ProcessGroup:
        return self.of(self.plan.pipeline)

    @property
    def tensor(self) -> dist.ProcessGroup:
        return self.of(self.plan.tensor)

    def use_once(self) -> None:
        """One tiny reduction on every group, in the building order: proves that each is whole."""
        one = torch.ones(1)
        for ranks in sorted(self.by_ranks):
            dist.all_reduce(one, group=self.by_ranks[ranks])


def build_groups(
    plan: GroupPlan, store: Store, rank: int, world_size: int, *, building: timedelta, using: timedelta
) -> Groups:
    """Build the world and this rank's other groups.

    Parameters
    ----------
    store
        Already limited to this epoch's keys.
    world_size
        Ranks of the layout and senders.
    building, using
        Longest wait for a peer while groups are built, and in any later call on them.
    """
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=building)
    world = dist.group.WORLD
    assert world is not None  # just initialised
    by_ranks: dict[Ranks, dist.ProcessGroup] = {}
    to_build = plan.to_build
    if len(plan.members) == world_size > 1:
        by_ranks[plan.members] = world
    elif len(plan.members) > 1:
        # Senders leave before the first commit: the members need a world without them.
        to_build = (plan.members, *to_build)
    for ranks in to_build:
        # Non-members only count the group. (With `use_local_synchronization` they would not have to, but
        # then torch names a group by how many groups each member has, and members do not find each other.)
        group = dist.new_group(list(ranks), timeout=building, sort_ranks=False)
        if rank in ranks:
            by_ranks[ranks] = group
    for group in (world, *by_ranks.values()):
        dist.distributed_c10d._set_pg_timeout(using, group)
    return Groups(plan, world, by_ranks)


def destroy_groups() -> None:
    """Forget the groups of the epoch before, whatever state they are in."""
    if dist.is_initialized():
        dist.destroy_process_group()
    # Torch numbers groups and puts the number into their keys. After an initialisation that failed it goes
    # on counting, and this rank would then wait for the others under keys that they do not use.
    dist.distributed_c10d._world.group_count = 0


class Remains:
    """Groups of past epochs in which something still runs: torch's destructor would wait for it."""

    def __init__(self) -> None:
        self._graves: list[tuple[Groups, list[dist.Work]]] = []

    def bury(self, groups: Groups, unfinished: list[dist.Work]) -> None:
        """Keep `groups` while `unfinished` runs."""
        if unfinished:
            self._graves.append((groups, unfinished))

    def clear(self) -> None:
        """Let go of those in which everything has ended."""
        self._graves = [grave for grave in self._graves if not all(w.is_completed() for w in grave[1])]


def collection(groups: Groups) -> ProcessGroupCollection:
    """The groups in the form that Megatron's model and schedules take."""
    solo = SoloGroup.get()
    pgs = ProcessGroupCollection()
    pgs.tp = groups.tensor
    pgs.pp = groups.pipeline
    pgs.mp = groups.tensor
    for name in ("cp", "dp", "dp_cp", "ep", "expt_dp", "tp_ep_pp"):
        setattr(pgs, name, solo)
    for name in ("tp_cp", "tp_ep", "expt_tp"):
        setattr(pgs, name, groups.tensor)
    # Tied embeddings and data parallelism are summed over holder sets, not by Megatron.
    pgs.embd = pgs.pos_embd = pgs.hcp = None
    return pgs


def publish(pgs: ProcessGroupCollection) -> None:
    """Set the globals that parts of Megatron still read instead of their own groups."""
    solo = SoloGroup.get()
    state = parallel_state
    state._TENSOR_MODEL_PARALLEL_GROUP = pgs.tp
    state._PIPELINE_MODEL_PARALLEL_GROUP = pgs.pp
    state._MODEL_PARALLEL_GROUP = pgs.tp
    state._TENSOR_AND_CONTEXT_PARALLEL_GROUP = pgs.tp
    state._EXPERT_TENSOR_PARALLEL_GROUP = pgs.tp
    state._CONTEXT_PARALLEL_GROUP = solo
    state._DATA_PARALLEL_GROUP = solo
    state._DATA_PARALLEL_GROUP_WITH_CP = solo
    state._EXPERT_MODEL_PARALLEL_GROUP = solo
    if state._GLOBAL_MEMORY_BUFFER is None:
        state._set_global_memory_buffer()
