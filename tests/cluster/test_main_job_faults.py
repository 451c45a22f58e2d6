"""The main job heals itself: a killed rank, a lost node with a spare, a lost node without one."""

from __future__ import annotations

from typing import Any

import pytest

from .job import as_new_afterwards
from .reference import Reference, reference  # noqa: F401  (a fixture)
from .run import ITERATIONS, LAYERS, MICRO_BATCHES, covers_every_layer_once, stage_sizes, worst_difference
from .three_faults import ThreeFaults, ranks_of, run_three_faults, status, status_command

pytestmark = pytest.mark.cluster

#: By driver: four active nodes and a spare of six; in containers, three and a spare with two ranks on each.
LAYOUTS: dict[str, dict[str, Any]] = {
    "embedded": {"nodes": 4, "spares": 1},
    "docker": {"nodes": 3, "spares": 1, "ranks_per_node": 2},
}


@pytest.fixture(scope="module", params=["embedded", pytest.param("docker", marks=pytest.mark.docker)])
def faulted(request: pytest.FixtureRequest) -> ThreeFaults:
    """One run under all three faults, ended; every test looks at another side of it."""
    driver: str = request.param
    cluster = request.getfixturevalue(driver)
    with as_new_afterwards(cluster):
        return run_three_faults(cluster, f"faults-{driver}", slurm=LAYOUTS[driver])


def plan_of(faulted: ThreeFaults, transition: dict[str, Any]) -> dict[str, Any]:
    """Return the `plan_chosen` that a transition carried out."""
    (plan,) = faulted.job.events("plan_chosen", epoch=transition["epoch"])
    return plan


class TestAKilledRank:
    def test_is_replaced_by_a_new_process_in_the_same_seat(self, faulted: ThreeFaults) -> None:
        (now,) = [r for r in ranks_of(faulted.after_rank) if r["rank"] == faulted.killed_rank["rank"]]
        assert now["pid"] != faulted.killed_rank["pid"]
        assert {**now, "pid": 0} == {**faulted.killed_rank, "pid": 0}
        assert plan_of(faulted, faulted.replaced)["reason"] == "same seats"

    def test_is_the_only_process_that_changes(self, faulted: ThreeFaults) -> None:
        first = faulted.job.events("transition_finished")[0]
        before = {rank["rank"]: rank["pid"] for rank in first["ranks"]}
        after = {rank["rank"]: rank["pid"] for rank in faulted.replaced["ranks"]}
        assert {rank for rank in before if before[rank] != after[rank]} == {faulted.killed_rank["rank"]}
        assert faulted.alive == dict.fromkeys(after, True)

    def test_is_noticed_by_its_agent_and_costs_no_node(self, faulted: ThreeFaults) -> None:
        fault = faulted.job.events("fault_detected")[0]
        assert (fault["node"], fault["rank"]) == ("n2", faulted.killed_rank["rank"])
        assert (fault["error"], fault["method"]) == ("killed (SIGKILL)", "process supervision")
        assert [e for e in faulted.job.events("agent_lost") if e["epoch"] < faulted.replaced["epoch"]] == []
        assert "lost" not in {node["role"] for node in faulted.after_rank["nodes"]}

    def test_has_its_state_from_a_peer_and_nothing_from_disk(self, faulted: ThreeFaults) -> None:
        sources = faulted.replaced["state_sources"]
        assert sources["peer"] > 0
        assert sources["local"] > 0
        assert sources["disk"] == 0


class TestALostNode:
    def test_is_noticed_by_its_silence(self, faulted: ThreeFaults) -> None:
        (lost,) = faulted.job.events("agent_lost", node=faulted.lost)
        assert "no heartbeat" in lost["reason"]
        faults = faulted.job.events("fault_detected", node=faulted.lost, method="node health monitoring")
        assert [fault["severity"] for fault in faults] == ["SEV1"]

    def test_gives_its_seat_to_the_spare(self, faulted: ThreeFaults) -> None:
        nodes = {node["name"]: node for node in faulted.after_node["nodes"]}
        spare = next(n["name"] for n in faulted.after_rank["nodes"] if n["role"] == "spare")
        assert nodes[faulted.lost]["role"] == "lost"
        assert nodes[spare]["role"] == "active"
        seats = {
            rank["rank"]: (rank["replica"], rank["stage"], rank["layers"])
            for rank in ranks_of(faulted.after_rank)
            if rank["node"] == faulted.lost
        }
        assert seats == {
            rank["rank"]: (rank["replica"], rank["stage"], rank["layers"])
            for rank in ranks_of(faulted.after_node)
            if rank["node"] == spare
        }
        assert plan_of(faulted, faulted.respared)["reason"] == "spare"

    def test_leaves_the_processes_of_the_others_alone(self, faulted: ThreeFaults) -> None:
        before = {
            rank["rank"]: rank["pid"] for rank in ranks_of(faulted.after_rank) if rank["node"] != faulted.lost
        }
        after = {rank["rank"]: rank["pid"] for rank in ranks_of(faulted.after_node)}
        assert before.items() <= after.items()

    def test_is_replaced_with_state_from_a_peer_and_nothing_from_disk(self, faulted: ThreeFaults) -> None:
        sources = faulted.respared["state_sources"]
        assert sources["peer"] > 0
        assert sources["disk"] == 0

    def test_is_reported_to_slurm_and_a_refusal_names_who_must_act(self, faulted: ThreeFaults) -> None:
        for node in (faulted.lost, faulted.second_lost):
            (asked,) = faulted.job.events("drain_requested", node=node)
            (result,) = faulted.job.events("drain_result", node=node)
            assert asked["reason"] == "lost connection"
            assert result["drained"] is faulted.drain_is_allowed
            if not faulted.drain_is_allowed:
                assert "administrator" in result["message"]
                assert f"scontrol update NodeName={node} State=DRAIN" in result["message"]


class TestALostNodeWithoutASpare:
    def test_has_its_layers_redistributed(self, faulted: ThreeFaults) -> None:
        plan = plan_of(faulted, faulted.redistributed)
        assert plan["reason"] == "redistributed"
        assert {faulted.lost, faulted.second_lost}.isdisjoint(plan["nodes"])

    def test_leaves_every_layer_exactly_once_in_every_replica(self, faulted: ThreeFaults) -> None:
        plan = plan_of(faulted, faulted.redistributed)
        assert all(covers_every_layer_once(replica, LAYERS) for replica in plan["replicas"])
        assert sum(replica["micro_batches"] for replica in plan["replicas"]) == MICRO_BATCHES

    def test_may_leave_stages_of_unequal_length(self, faulted: ThreeFaults) -> None:
        sizes = stage_sizes(plan_of(faulted, faulted.redistributed))
        deep = [replica for replica in sizes if len(replica) > 1]
        assert deep != []
        assert all(max(replica) - min(replica) >= 1 for replica in deep)  # 5 is no multiple of 2, 3 or 4
        ranks = ranks_of(faulted.after_second_node)
        held = [rank["layers"][1] - rank["layers"][0] + 1 for rank in ranks]
        assert sorted(held) == sorted(count for replica in sizes for count in replica)

    def test_moves_state_between_ranks_and_not_through_a_file(self, faulted: ThreeFaults) -> None:
        sources = faulted.redistributed["state_sources"]
        assert sources["peer"] > 0
        assert sources["disk"] == 0


class TestTheRun:
    def test_ends_completed_with_exit_code_0(self, faulted: ThreeFaults) -> None:
        record = faulted.job.record()
        assert record.exit_code is not None
        assert (record.state.name, record.exit_code.code, record.exit_code.signal) == ("COMPLETED", 0, 0)

    def test_leaves_no_process_on_any_node(self, faulted: ThreeFaults) -> None:
        assert faulted.job.left_over() == {}

    def test_sums_up_its_incidents(self, faulted: ThreeFaults) -> None:
        summary = faulted.job.summary()
        assert summary is not None
        assert (summary["state"], summary["exit_code"]) == ("finished", 0)
        told = [(incident["node"], incident["error"]) for incident in summary["incidents"]]
        assert told == [
            ("n2", "killed (SIGKILL)"),
            (faulted.lost, "lost connection"),
            (faulted.second_lost, "lost connection"),
        ]
        assert all(incident["seconds"] > 0 for incident in summary["incidents"])

    def test_is_shown_by_the_status_command(self, faulted: ThreeFaults) -> None:
        told = status_command(faulted.job)
        assert told["job_id"] == faulted.job.job_id
        assert (told["state"], told["iteration"]) == ("COMPLETED", ITERATIONS)
        assert told["nodes"] == status(faulted.job)["nodes"]

    def test_trains_every_iteration_once(self, faulted: ThreeFaults) -> None:
        lines = (faulted.job.folder / "metrics.jsonl").read_text().splitlines()
        assert list(faulted.job.losses()) == list(range(1, ITERATIONS + 1))
        assert len(lines) == ITERATIONS

    def test_has_the_losses_of_the_run_without_faults(
        self,
        faulted: ThreeFaults,
        reference: Reference,  # noqa: F811
    ) -> None:
        assert faulted.job.losses().keys() == reference.losses.keys()
        assert worst_difference(faulted.job.losses(), reference.losses) <= 1e-5
