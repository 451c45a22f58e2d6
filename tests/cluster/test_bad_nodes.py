"""A bad node on a real cluster: drained by the site's helper, left out of later jobs, given back."""

from __future__ import annotations

import ast
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from testcluster.api import Cluster

from .job import ENVIRONMENT, ROOT, SUBMIT, Job, as_new_afterwards, attempt, submit, write_settings
from .run import Event
from .test_slurm_room import sleeping, state_of
from .waiting import until

pytestmark = pytest.mark.cluster

HELPER = ROOT / "slurm" / "drain_helper"
LOST = "n3"


class Desk:
    """The site's folder for requests, and its helper, run by an account that may drain."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.spool = folder / "spool"
        self.spool.mkdir()
        self.spool.chmod(0o1777)
        shutil.chown(self.spool, cluster.status()["admin"])  # who runs the helper
        self.helper = folder / "drain_helper"
        shutil.copy(HELPER, self.helper)

    def run(self) -> str:
        argv = [sys.executable, str(self.helper), str(self.spool)]
        state = self.cluster.exec(["mktemp", "-d"], admin=True).stdout.strip()
        try:
            return self.cluster.exec([*argv, f"--state={state}/drains.json"], admin=True).stdout
        finally:
            self.cluster.exec(["rm", "-r", state], admin=True)

    def ask(self, node: str, job: str) -> None:
        """Leave a request as the plain user."""
        text = json.dumps({"node": node, "job_id": job, "kind": "x"})
        script = f"import sys; open({str(self.spool / f'{job}-{node}.json')!r}, 'w').write(sys.argv[1])"
        self.cluster.exec([sys.executable, "-c", script, text])


@pytest.fixture(scope="module")
def desk(embedded: Cluster) -> Iterator[Desk]:
    told = embedded.status()
    if told["user"] == told["admin"]:
        pytest.skip("the plain user is the cluster's administrator here: nothing is refused")
    folder = Path(tempfile.mkdtemp(prefix="unicron-desk-"))
    folder.chmod(0o755)
    yield Desk(embedded, folder)
    shutil.rmtree(folder)


@dataclass(frozen=True, slots=True)
class Story:
    """What was seen of a run that lost a node, and of the submissions after it."""

    job: Job
    result: Event
    said: str
    node: str
    later: str
    later_words: str
    restored_words: str


def shown(cluster: Cluster, kind: str, name: str) -> str:
    return cluster.exec(["scontrol", "show", kind, "--oneliner", name]).stdout


@pytest.fixture(scope="module")
def story(embedded: Cluster, desk: Desk) -> Iterator[Story]:
    with as_new_afterwards(embedded):
        path = write_settings(embedded, "bad-nodes", slurm={"nodes": 4, "spares": 1})
        environment = {**ENVIRONMENT, "UNICRON_DRAIN_REQUESTS": str(desk.spool)}
        told = json.loads(embedded.exec([SUBMIT, "--json", str(path)], env=environment).stdout)
        job = Job(embedded, told["job_id"], Path(told["run_dir"]))
        job.wait_iteration(5)
        embedded.kill_node(LOST)
        result = job.wait_event("drain_result", node=LOST)
        said = desk.run()
        node = shown(embedded, "node", LOST)
        small = write_settings(embedded, "later", slurm={"nodes": 2})
        later = attempt(embedded, small, "--parsable", "--hold")
        record = shown(embedded, "job", later.stdout.strip())
        job.wait_recovered(count=1)
        job.cancel()
        job.wait_end()
        embedded.restore_node(LOST)
        restored = attempt(embedded, small, "--parsable", "--hold")
        yield Story(job, result, said, node, record, later.stderr, restored.stderr)


class TestARefusedDrain:
    def test_leaves_a_request_in_the_sites_folder_and_says_so(self, story: Story, desk: Desk) -> None:
        assert story.result["drained"] is False
        assert story.result["request"] == str(desk.spool / f"{story.job.job_id}-{LOST}.json")
        assert "Slurm lets only an administrator" in story.result["message"]

    def test_is_made_good_by_the_helper(self, story: Story, desk: Desk) -> None:
        assert f"{LOST} is drained" in story.said
        assert f"Reason=unicron: lost connection job {story.job.job_id} uid " in story.node
        assert "DRAIN" in story.node.partition(" State=")[2].split()[0]
        assert list(desk.spool.iterdir()) == []


class TestALaterSubmission:
    def test_leaves_the_node_out_and_says_why(self, story: Story) -> None:
        assert f" ExcNodeList={LOST} " in story.later
        assert f"{LOST} (lost connection, job {story.job.job_id})" in story.later_words

    def test_takes_it_again_once_it_is_back_in_service(self, story: Story) -> None:
        assert "bad nodes" not in story.restored_words


class TestTheIncident:
    def test_has_a_verdict_with_its_evidence_and_an_action_with_its_rule(self, story: Story) -> None:
        verdicts = story.job.events("verdict")
        assert all(set(verdict["nodes"]) <= {LOST} for verdict in verdicts)
        verdict = verdicts[-1]
        assert (verdict["nodes"], verdict["error"]) == ([LOST], "lost connection")
        assert any(LOST in line and "no heartbeat" in line for line in verdict["evidence"])
        actions = [(event["node"], event["rule"]) for event in story.job.events("action_chosen", node=LOST)]
        assert (LOST, "bad node") in actions

    def test_counts_from_the_last_sign_of_life(self, story: Story) -> None:
        (closed,) = story.job.events("incident_closed")
        (fault,) = story.job.events("fault_detected", node=LOST, method="node health monitoring")
        assert fault["detection_seconds"] > 1.0
        assert closed["seconds"] > fault["detection_seconds"]


def found_bad(job: Job, node: str, kind: str) -> None:
    """Have the list beside the run folders say that a job found a node bad a moment ago."""
    code = (
        "import sys, time; from pathlib import Path; from unicron_hpc.slurm.bad_nodes import BadNode, add;"
        "add(Path(sys.argv[1]), BadNode(sys.argv[2], time.time(), sys.argv[3], '1'))"
    )
    argv = [sys.executable, "-c", code, str(job.folder.parent), node, kind]
    job.cluster.exec(argv, env=ENVIRONMENT)


class TestARequeuedJob:
    def test_does_not_get_its_bad_node_again(self, embedded: Cluster) -> None:
        job = submit(embedded, "requeued", slurm={"nodes": 2, "requeue": True})
        job.wait_iteration(2)
        before = job.record().nodes
        bad = before[-1]
        found_bad(job, bad, "ECC error")
        with job.follower() as follower:
            embedded.exec(["scontrol", "requeue", job.job_id])
            until(lambda: job.record().state.name, lambda name: name == "PENDING")
            assert f" ExcNodeList={bad} " in shown(embedded, "job", job.job_id)
            (told,) = job.events("job_requeued")
            assert f"{bad} (ECC error, job 1)" in told["notes"][0]
            embedded.exec(["scontrol", "update", f"JobId={job.job_id}", "StartTime=now"])
            started = until(lambda: job.events("job_started"), lambda events: len(events) == 2)[-1]
            assert bad not in started["nodes"]
            job.cancel()
            told, said = follower.communicate(timeout=120)
        assert told.count("begins: ") == 2  # it was followed through the queue, and to its end
        assert said.strip().endswith("following on")
        assert follower.returncode == 0

    def test_uses_a_bad_node_that_it_was_given_as_its_last_spare(self, embedded: Cluster) -> None:
        earlier = Job(embedded, "1", embedded.shared_dir / "runs" / "earlier-1")
        embedded.exec(["mkdir", "-p", str(earlier.folder.parent)])
        found_bad(earlier, "n1", "ECC error")
        # Who names nodes gets them, also when they are bad.
        job = submit(embedded, "given", slurm={"nodes": 2, "spares": 1, "nodelist": "n[1-3]"})
        job.wait_iteration(2)
        assert job.events("job_started")[0]["nodes"] == ["n2", "n3", "n1"]
        assert {rank["node"] for rank in job.ranks()} == {"n2", "n3"}
        assert job.events("bad_nodes_last")[0]["nodes"] == {"n1": "ECC error, job 1"}


class TestTheHelperRefuses:
    def test_a_node_of_somebody_else(self, embedded: Cluster, desk: Desk) -> None:
        job = sleeping(embedded, "n1,n2")
        desk.ask("n6", job)
        assert f"refused: job {job} does not have n6" in desk.run()
        assert "DRAIN" not in embedded.node_states()["n6"]

    def test_who_does_not_own_the_job(self, embedded: Cluster, desk: Desk) -> None:
        job = sleeping(embedded, "n1,n2")
        request = desk.spool / "of-root.json"
        request.write_text(json.dumps({"node": "n1", "job_id": job}))
        request.chmod(0o644)
        assert f"refused: job {job} is not uid " in desk.run()
        assert "DRAIN" not in embedded.node_states()["n1"]


def test_a_node_is_given_back_while_the_job_goes_on(embedded: Cluster) -> None:
    job = sleeping(embedded, "n1,n2,n3")
    code = f"from unicron_hpc.slurm.giving_back import give_back; print(give_back({job!r}, 'n3'))"
    told = embedded.exec([sys.executable, "-c", code], env=ENVIRONMENT).stdout
    given, words = ast.literal_eval(told)
    assert given, words
    until(lambda: embedded.node_states()["n3"], lambda state: state == "IDLE")
    assert state_of(embedded, job) == "RUNNING"
    assert list(embedded.shared_dir.glob("slurm_job_*_resize*")) == []
    for node in ("n1", "n2"):
        assert "sleep" in (embedded.processes(node) or {}).values()
