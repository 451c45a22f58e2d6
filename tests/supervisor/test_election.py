"""Votes: what a count means, and that no term has two winners."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.supervisor.examples import few, steps
from unicron_hpc.supervisor.election import Ballot, Verdict, patience, verdict

NODES = ["n1", "n2", "n3", "n4", "n5"]


@few
@given(st.integers(1, 50), st.data())
def test_two_disjoint_groups_never_both_win(members: int, data: st.DataObject) -> None:
    ours = data.draw(st.integers(0, members))
    theirs = data.draw(st.integers(0, members - ours))
    assert [verdict(ours, members), verdict(theirs, members)].count(Verdict.WON) <= 1


@few
@given(st.integers(1, 50))
def test_exactly_half_is_a_tie_never_a_victory(half: int) -> None:
    assert verdict(half, 2 * half) is Verdict.TIED
    assert verdict(half + 1, 2 * half) is Verdict.WON
    assert verdict(half - 1, 2 * half) is Verdict.SHORT


@few
@given(st.integers(0, 25))
def test_an_odd_number_of_members_knows_no_tie(half: int) -> None:
    assert verdict(half + 1, 2 * half + 1) is Verdict.WON
    assert verdict(half, 2 * half + 1) is Verdict.SHORT


class Elections(RuleBasedStateMachine):
    """Agents stand, and votes and requests are lost, late, repeated or out of order."""

    @initialize(count=st.integers(1, 5))
    def begin(self, count: int) -> None:
        self.nodes = NODES[:count]
        self.ballots = {node: Ballot(node) for node in self.nodes}
        self.deaf: set[str] = set()
        self.requests: list[tuple[str, int, str]] = []
        self.votes: list[tuple[str, int, str]] = []
        self.winners: dict[int, set[str]] = {}
        self.granted: dict[tuple[str, int], set[str]] = {}

    def judge(self, node: str) -> None:
        ballot = self.ballots[node]
        if ballot.voted_for == node and verdict(len(ballot.votes), len(self.nodes)) is Verdict.WON:
            self.winners.setdefault(ballot.term, set()).add(node)

    @rule(data=st.data())
    def stand(self, data: st.DataObject) -> None:
        node = data.draw(st.sampled_from(self.nodes))
        term = self.ballots[node].stand()
        self.granted.setdefault((node, term), set()).add(node)
        self.requests += [(node, term, other) for other in self.nodes if other != node]
        self.judge(node)

    @rule(data=st.data(), silent=st.booleans())
    def hear_a_request(self, data: st.DataObject, silent: bool) -> None:
        if not self.requests:
            return
        candidate, term, voter = data.draw(st.sampled_from(self.requests))  # maybe again
        if self.ballots[voter].grant(candidate, term, candidate_epoch=1, own_epoch=1, leader_silent=silent):
            assert silent
            self.granted.setdefault((voter, term), set()).add(candidate)
            self.votes.append((voter, term, candidate))

    @rule(data=st.data())
    def hear_a_vote(self, data: st.DataObject) -> None:
        if not self.votes:
            return
        voter, term, candidate = data.draw(st.sampled_from(self.votes))  # maybe again
        if self.ballots[candidate].voted_for == candidate:  # as the agent does
            self.ballots[candidate].count(voter, term)
            self.judge(candidate)

    @rule(data=st.data())
    def hear_of_a_higher_term(self, data: st.DataObject) -> None:
        node = data.draw(st.sampled_from(self.nodes))
        self.ballots[node].saw(data.draw(st.integers(0, 8)))

    @invariant()
    def no_term_has_two_winners(self) -> None:
        assert all(len(winners) == 1 for winners in getattr(self, "winners", {}).values())

    @invariant()
    def nobody_votes_twice_in_a_term(self) -> None:
        assert all(len(candidates) == 1 for candidates in getattr(self, "granted", {}).values())


TestElections = Elections.TestCase
TestElections.settings = steps


@few
@given(st.integers(2, 9))
def test_a_deaf_candidate_cannot_win_while_the_others_hear_the_leader(members: int) -> None:
    candidate = Ballot("n0")
    term = candidate.stand()
    for number in range(1, members):
        voter = Ballot(f"n{number}")
        granted = voter.grant("n0", term, candidate_epoch=9, own_epoch=1, leader_silent=False)
        assert not granted
        assert voter.term == 1  # it does not even notice the term: the leader's orders stay valid
    assert verdict(len(candidate.votes), members) is not Verdict.WON


def test_a_candidate_that_knows_an_older_epoch_gets_no_vote() -> None:
    voter = Ballot("n1")
    assert not voter.grant("n2", 2, candidate_epoch=3, own_epoch=4, leader_silent=True)
    assert voter.grant("n3", 2, candidate_epoch=4, own_epoch=4, leader_silent=True)


def test_a_repeated_request_of_the_same_candidate_is_granted_again() -> None:
    voter = Ballot("n1")
    assert voter.grant("n2", 2, candidate_epoch=1, own_epoch=1, leader_silent=True)
    assert voter.grant("n2", 2, candidate_epoch=1, own_epoch=1, leader_silent=True)
    assert not voter.grant("n3", 2, candidate_epoch=1, own_epoch=1, leader_silent=True)


def test_a_request_of_an_older_term_gets_no_vote() -> None:
    voter = Ballot("n1", term=5)
    assert not voter.grant("n2", 4, candidate_epoch=1, own_epoch=1, leader_silent=True)
    assert voter.term == 5


def test_votes_of_an_earlier_term_do_not_count_in_a_later_one() -> None:
    candidate = Ballot("n1")
    first = candidate.stand()
    second = candidate.stand()
    assert candidate.count("n2", first) == 1
    assert candidate.count("n2", second) == 2
    assert candidate.count("n2", second) == 2  # the same one again
    assert candidate.stand() > second
    assert candidate.votes == {"n1"}


@few
@given(st.lists(st.sampled_from(NODES), min_size=1, unique=True), st.sampled_from(NODES), st.floats(0.01, 5))
def test_members_stand_one_after_the_other_and_the_first_at_once(
    members: list[str], coordinator: str, step: float
) -> None:
    waits = [patience(node, members, coordinator, step) for node in members if node != coordinator]
    assert waits == sorted(set(waits))
    assert waits[:1] in ([], [0.0])
    assert all(wait < patience("stranger", members, coordinator, step) for wait in waits)
