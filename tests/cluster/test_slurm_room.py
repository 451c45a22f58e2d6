"""What unicron_hpc.slurm asks of Slurm, asked of a real one, as a user without privileges."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest
from testcluster.api import Cluster

from .waiting import until

pytestmark = pytest.mark.cluster
REPOSITORY = Path(__file__).resolve().parents[2]
ENV = {"PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1"}


def python(cluster: Cluster, code: str, *, node: str = "", admin: bool = False) -> str:
    """Run code of ours as the plain user and return what it prints."""
    return cluster.exec([sys.executable, "-c", code], env=ENV, node=node, admin=admin).stdout.strip()


def sbatch(cluster: Cluster, *words: str, check: bool = True) -> tuple[int, str, str]:
    """Run unicron-sbatch on two nodes of the cluster."""
    argv = [sys.executable, "-m", "unicron_hpc.cli.sbatch", str(REPOSITORY / "templates" / "gpt-tiny.yaml")]
    done = cluster.exec([*argv, "--nodes=2", *words], env=ENV, check=check)
    return done.returncode, done.stdout, done.stderr


def state_of(cluster: Cluster, job: str) -> str:
    """The job's state as our query sees it."""
    return python(cluster, f"from unicron_hpc.slurm import queries; print(queries.job({job!r}).state.name)")


def sleeping(cluster: Cluster, nodes: str) -> str:
    """Start a job that sleeps on the named nodes, and return its id once it runs there."""
    task = "touch up-$SLURM_JOB_ID-$SLURMD_NODENAME; exec sleep 600"
    step = f"srun --no-kill --kill-on-bad-exit=0 --wait=0 sh -c '{task}'"
    count = len(nodes.split(","))
    argv = ["sbatch", "--parsable", "--no-kill", f"-N{count}", "-w", nodes, f"--wrap={step}"]
    job = cluster.exec(argv).stdout.strip()
    until(lambda: len(list(cluster.shared_dir.glob(f"up-{job}-*"))), lambda seen: seen == count)
    return job


def test_slurm_takes_the_script_and_reads_every_option_as_meant(embedded: Cluster) -> None:
    comment = 'first run, "big" model # 1'
    words = [f"--comment={comment}", "--hold", "--time=72:00:00", "--exclude=n1", "--requeue", "--parsable"]
    _, job, _ = sbatch(embedded, *words)
    shown = embedded.exec(["scontrol", "show", "job", "--oneliner", job.strip()]).stdout
    assert f" Comment={comment} " in shown
    assert " TimeLimit=3-00:00:00 " in shown
    assert " ExcNodeList=n1 " in shown
    assert " NumNodes=3-3 " in shown
    assert " JobName=gpt-tiny " in shown
    assert f" StdOut={embedded.shared_dir}/runs/gpt-tiny-{job.strip()}.out " in shown
    folder = embedded.shared_dir / "runs" / f"gpt-tiny-{job.strip()}"
    assert {"train.yaml", "train.source.yaml", "submission.sh", "logs"} <= {p.name for p in folder.iterdir()}
    assert state_of(embedded, job.strip()) == "PENDING"


def test_a_refusal_comes_in_slurms_words_with_exit_code_2(embedded: Cluster) -> None:
    code, out, err = sbatch(embedded, "--partition=nowhere", check=False)
    assert (code, out) == (2, "")
    assert "Batch job submission failed: Invalid partition name specified" in err
    assert "submission.sh" in err


def test_more_spares_than_nodes_are_refused_before_submitting(embedded: Cluster) -> None:
    code, _, err = sbatch(embedded, "--spares=9", check=False)
    assert code == 2
    assert "slurm.spares 9 make 11 nodes, partition main has 6" in err
    assert "write spares: 4" in err


def test_a_plain_user_may_not_drain_and_an_administrator_may(embedded: Cluster) -> None:
    ask = "from unicron_hpc.slurm.drain import drain; r = drain('n2', 'u: Xid 79', ['n2'], job_id='5'); "
    ask += "print((r.drained, r.refused, r.message))"
    drained, refused, message = ast.literal_eval(python(embedded, ask))
    assert (drained, refused) == (False, True)
    assert "Invalid user id" in message
    assert ast.literal_eval(python(embedded, ask, admin=True))[0] is True
    shown = embedded.exec(["scontrol", "show", "node", "--oneliner", "n2"]).stdout
    assert "Reason=u: Xid 79 [" in shown
    state = "from unicron_hpc.slurm.queries import node_states; s = node_states(['n1', 'n2', 'n9']); "
    state += "print({k: (v.draining, v.usable) for k, v in s.items()})"
    assert ast.literal_eval(python(embedded, state)) == {"n1": (False, True), "n2": (True, False)}


@pytest.mark.parametrize(("code", "state"), [(0, "COMPLETED"), (3, "FAILED")])
def test_a_job_whose_batch_node_is_dead_is_ended_with_its_result(
    embedded: Cluster, code: int, state: str
) -> None:
    job = sleeping(embedded, "n1,n2")
    embedded.kill_node("n1")
    end = (
        f"from unicron_hpc.slurm.complete import complete_job; print(complete_job({job!r}, {code}).completed)"
    )
    assert python(embedded, end, node="n2") == "True"
    # It is COMPLETING until slurmctld gives the dead node up (SlurmdTimeout).
    until(lambda: state_of(embedded, job), lambda seen: seen == state, seconds=120)
    told = f"from unicron_hpc.slurm.queries import job; print(job({job!r}).exit_code.code)"
    assert python(embedded, told) == str(code)
    assert "sleep" not in (embedded.processes("n2") or {}).values()


def test_a_job_that_slurm_does_not_know_is_no_success(embedded: Cluster) -> None:
    assert state_of(embedded, "999999") == "UNKNOWN"


def test_the_version_is_read(embedded: Cluster) -> None:
    version = ast.literal_eval(
        python(embedded, "from unicron_hpc.slurm.queries import slurm_version; print(slurm_version())")
    )
    assert version >= (22, 5, 0)
