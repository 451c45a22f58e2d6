"""What is decided about whole nodes, and how the journal tells it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from unicron_hpc.config import RecoverySettings
from unicron_hpc.detect.handling import Case, Decision, decide
from unicron_hpc.report.journal import Journal
from unicron_hpc.supervisor.draining import Drains
from unicron_hpc.supervisor.incident import Evidence

#: Longest text of evidence in the journal, in characters.
LONGEST = 2000


class NodeFaults:
    """Has the rules decide about nodes, and hands the nodes that are out on.

    Parameters
    ----------
    recovery
        The budgets.
    journal
        Takes `action_chosen` and `node_warning`.
    drains
        Takes the nodes that are out.
    """

    def __init__(self, recovery: RecoverySettings, journal: Journal, drains: Drains) -> None:
        self._recovery = recovery
        self._journal = journal
        self._drains = drains

    def decide(self, evidence: Evidence, lost_together: int = 1) -> Decision:
        """What is done about a node of which this is known."""
        return decide(Case(evidence.finding, lost_together=lost_together), self._recovery)

    def out(
        self,
        nodes: Sequence[str],
        why: Mapping[str, Evidence],
        known: Mapping[str, Decision],
        incidents: Mapping[str, int | None],
        epoch: int,
    ) -> None:
        """Nodes have just been taken out.

        Parameters
        ----------
        why
            The evidence against each.
        known
            What was decided about them already.
        incidents
            The incident that each belongs to, if any.
        """
        for node in nodes:
            decision = known.get(node) or self.decide(why[node], len(nodes))
            if why[node].rank is None:  # a rank's evidence was told by its task
                self._journal.write(
                    "action_chosen",
                    epoch,
                    incident=incidents[node],
                    node=node,
                    rank=None,
                    error=why[node].finding.error,
                    action=decision.action.value,
                    severity=decision.severity.name,
                    rule=decision.rule,
                    reason=decision.reason,
                )
            self._drains.taken_out(node, why[node], decision, epoch)

    def warn(self, evidence: Evidence, epoch: int) -> None:
        """Nothing has failed, or nothing that anybody here has to mend: a line in the journal."""
        self._journal.write(
            "node_warning",
            epoch,
            node=evidence.node,
            rank=evidence.rank,
            error=evidence.finding.error,
            evidence=evidence.detail[-LONGEST:],
        )
