"""Whether the nodes in contact may decide without the silent ones."""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence

from unicron_hpc.supervisor.election import Verdict, verdict

log = logging.getLogger(__name__)

#: Exit code of an agent on the side that may not go on.
EXIT_MINORITY = 76
#: Seconds between two questions to slurmctld.
ASK_INTERVAL = 2.0
#: Seconds without a tie after which slurmctld's answer is forgotten: a lost node may be back by the next one.
#: Nodes go silent one by one, so that the same tie may come and go within a heartbeat or two.
ANSWER_LASTS = 5.0


class Right(enum.Enum):
    """What the nodes in contact may do."""

    GO_ON = "go on"  # they are the majority, or the missing are known to be dead
    STOP = "stop"  # just now they have become a minority: training stops
    WAIT = "wait"  # still a minority; slurmctld is being asked
    GIVE_UP = "give up"  # a minority for too long


class Quorum:
    """The majority rule over the last committed membership, with slurmctld as witness.

    More than half of the members that took part in the last decision may decide alone. Exactly half may if
    slurmctld has lost every missing node and still has contact with this one: it is with one half only.
    Fewer never may: what is lost to them and to slurmctld may be a majority behind a cut network.

    Parameters
    ----------
    members
        The first membership: the whole allocation.
    witness
        Says whether slurmctld has lost these nodes; blocks, so it is called in a thread.
    limit
        Seconds without the right to decide after which this side gives up.
    one_machine
        All agents are processes of one machine (no Slurm): who is silent is dead or stopped, never cut off.
    """

    def __init__(
        self,
        members: Iterable[str],
        witness: Callable[[Sequence[str]], bool],
        limit: float,
        *,
        one_machine: bool = False,
    ) -> None:
        self._one_machine = one_machine
        self.committed = frozenset(members)
        self._witness = witness
        self._limit = limit
        self._since: float | None = None
        self._dead: frozenset[str] = frozenset()
        self._question: asyncio.Task[None] | None = None
        self._asked_at = 0.0
        self._tied_at = 0.0

    @property
    def short(self) -> bool:
        """Whether this side is, for now, a minority."""
        return self._since is not None

    def commit(self, members: Iterable[str]) -> None:
        """These members have taken part in a decision."""
        self.committed = frozenset(members)
        self._dead = frozenset()

    def judge(self, left: Collection[str], now: float) -> Right:
        """What the members in `left` may do; asks slurmctld in the background where it matters."""
        missing, judged = self._count(left)
        if judged is Verdict.TIED:
            if now - self._tied_at > ANSWER_LASTS:
                self._dead = frozenset()  # that was about another tie
            self._tied_at = now
        if self.enough(left):
            self._since = None
            return Right.GO_ON
        if (
            judged is Verdict.TIED
            and now - self._asked_at >= ASK_INTERVAL
            and (self._question is None or self._question.done())
        ):
            self._asked_at = now
            self._question = asyncio.create_task(self._ask(sorted(missing)))
        if self._since is None:
            self._since = now
            return Right.STOP
        return Right.GIVE_UP if now - self._since > self._limit else Right.WAIT

    def enough(self, left: Collection[str]) -> bool:
        """Whether the members in `left` may decide, as far as is known now."""
        missing, judged = self._count(left)
        witnessed = judged is Verdict.TIED and missing <= self._dead
        return judged is Verdict.WON or witnessed or self._one_machine

    def _count(self, left: Collection[str]) -> tuple[frozenset[str], Verdict]:
        here = self.committed & set(left)
        return self.committed - here, verdict(len(here), len(self.committed))

    def close(self) -> None:
        """Ask no more."""
        if self._question:
            self._question.cancel()

    async def _ask(self, missing: list[str]) -> None:
        begun, members = time.monotonic(), self.committed
        lost = await asyncio.to_thread(self._witness, missing)
        if members is not self.committed:
            return  # a decision was made meanwhile: who took part in it lives
        self._dead = frozenset(missing) if lost else frozenset()
        log.info(
            "slurmctld on %s: %s (%.1f s)",
            ",".join(missing),
            "lost" if lost else "not known to be lost",
            time.monotonic() - begun,
        )
