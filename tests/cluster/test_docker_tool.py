"""The test cluster in Docker: nodes apart, each with its own host and address, that break as told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from testcluster import engine, image
from testcluster.api import COMMAND, Cluster
from testcluster.errors import ClusterError

from .waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.docker]
PYTHON = Path(__file__).resolve().parents[2] / ".venv" / "bin" / "python"
#: Slurm's version in each Debian release.
VERSIONS = {"bookworm": "22.05", "trixie": "24.11"}


def sleeping_job(cluster: Cluster, nodes: int) -> str:
    """Submit a job that sleeps on every node, and return its id once every node's task has said so."""
    script = f"srun --no-kill -N{nodes} sh -c 'touch started-$SLURM_JOB_ID-$SLURMD_NODENAME; exec sleep 1000'"
    job = cluster.exec(["sbatch", "--parsable", "--no-kill", f"-N{nodes}", f"--wrap={script}"]).stdout.strip()
    until(lambda: len(list(cluster.shared_dir.glob(f"started-{job}-*"))), lambda count: count == nodes)
    return job


def reaches(cluster: Cluster, node: str) -> bool:
    """Tell whether the login node can open a connection to a node's slurmd."""
    script = "import socket, sys; socket.create_connection((sys.argv[1], 6818), 1.0).close()"
    address = cluster.status()["nodes"][node]["address"]
    return cluster.exec(["python3", "-c", script, address], check=False).returncode == 0


def test_the_suite_decides_slurms_version(docker: Cluster) -> None:
    suite = docker.status()["suite"]
    assert docker.exec(["sinfo", "--version"]).stdout.startswith(f"slurm-wlm {VERSIONS[suite]}.")


def test_a_batch_job_of_the_plain_user_runs_on_nodes_of_their_own_with_the_repositorys_python(
    docker: Cluster,
) -> None:
    code = (
        "import socket, os, msgspec; h = socket.gethostname(); print(h, socket.gethostbyname(h), os.getuid())"
    )
    script = f'srun -N3 --ntasks-per-node=1 {PYTHON if PYTHON.exists() else sys.executable} -c "{code}"'
    docker.exec(["sbatch", "--wait", "-N3", "--output=out-%j.txt", f"--wrap={script}"])
    (output,) = docker.shared_dir.glob("out-*.txt")
    nodes = docker.status()["nodes"]
    assert sorted(output.read_text().splitlines()) == [
        f"n{i} {nodes[f'n{i}']['address']} 20001" for i in (1, 2, 3)
    ]


def test_draining_is_refused_to_the_plain_user_and_allowed_to_the_administrator(docker: Cluster) -> None:
    drain = ["scontrol", "update", "NodeName=n4", "State=DRAIN", "Reason=test"]
    with pytest.raises(ClusterError, match="Invalid user id"):
        docker.exec(drain)
    docker.exec(drain, admin=True)
    assert docker.node_states()["n4"] == "DRAINED"
    docker.restore_node("n4")
    assert docker.node_states()["n4"] == "IDLE"


def test_exec_passes_exit_code_input_output_and_signals_through(docker: Cluster) -> None:
    done = docker.exec(["sh", "-c", "cat; echo trouble >&2; exit 7"], input="words", check=False)
    assert (done.returncode, done.stdout, done.stderr) == (7, "words", "trouble\n")
    script = "trap 'echo got it; exit 9' TERM; echo ready; while :; do sleep 0.05; done"
    command = docker.exec_command(["sh", "-c", script], node="n2")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=docker.shared_dir) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGTERM)
            assert process.communicate(timeout=30)[0] == "got it\n"
        finally:
            process.kill()
    assert process.returncode == 9


def test_a_killed_node_is_found_down_while_the_job_lives_on_and_comes_back(docker: Cluster) -> None:
    job = sleeping_job(docker, 3)
    before = docker.processes("n3")
    docker.kill_node("n2")
    assert docker.processes("n2") is None
    until(docker.node_states, lambda states: states["n2"].startswith("DOWN"), seconds=90)
    assert docker.exec(["squeue", "--noheader", "--format=%T", f"--jobs={job}"]).stdout == "RUNNING\n"
    assert docker.processes("n3") == before
    docker.restore_node("n2")
    docker.exec(["srun", "-w", "n2", "true"])


ECHO = """import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("", 7007))
print("up", flush=True)
while True:
    s.sendto(*s.recvfrom(64))
"""
ASK = """import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect((sys.argv[1], 7007))
s.setblocking(True)
s.settimeout(0.02)
came = 0
for number in range(200):
    s.send(str(number).encode())
    try:
        while s.recv(64) != str(number).encode():
            pass
        came += 1
    except TimeoutError:
        pass
print(came)
"""


def test_a_lossy_link_loses_packets_until_it_is_told_to_stop(docker: Cluster) -> None:
    address = docker.status()["nodes"]["n2"]["address"]
    command = docker.exec_command(["python3", "-c", ECHO], node="n2")
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as echo:
        try:
            assert echo.stdout is not None
            assert echo.stdout.readline() == "up\n"

            def answers() -> int:
                return int(docker.exec(["python3", "-c", ASK, address], node="n1").stdout)

            assert answers() >= 195
            docker.link_loss("n2", percent=30)
            assert 100 <= answers() <= 170  # of 200, 140 on average
            docker.link_loss("n2", percent=0)
            assert answers() >= 195
        finally:
            echo.terminate()


def test_a_cut_node_lives_on_unreached_and_heals_with_the_same_address(docker: Cluster) -> None:
    sleeping_job(docker, 2)
    before = docker.processes("n2")
    assert reaches(docker, "n2")
    docker.cut_node("n2")
    assert not reaches(docker, "n2")
    assert docker.processes("n2") == before
    docker.heal_node("n2")
    until(lambda: reaches(docker, "n2"), bool, seconds=20)
    assert docker.processes("n2") == before


def test_a_paused_node_is_silent_and_goes_on_with_the_same_processes(docker: Cluster) -> None:
    sleeping_job(docker, 2)
    before = docker.processes("n2")
    docker.pause_node("n2")
    with pytest.raises(ClusterError, match="does not run"):
        docker.exec(["true"], node="n2")
    docker.resume_node("n2")
    assert docker.processes("n2") == before


def test_the_embedded_cluster_runs_on_this_release_too_and_without_root(docker: Cluster) -> None:
    tool = str(COMMAND)
    script = '"$0" up --nodes 2 && "$0" exec -- srun -N2 id -un; code=$?; "$0" down; exit $code'
    assert docker.exec(["sh", "-c", script, tool], node="n4").stdout == "unicron-user\nunicron-user\n"


def test_down_removes_containers_network_and_files_even_after_a_crash(docker: Cluster) -> None:
    with Cluster(f"e{os.getpid()}") as other:
        other.up(nodes=1, driver="docker", suite=docker.status()["suite"])
        folder = Path(other.status()["folder"])
        other.exec(["touch", "of-the-user"])
        found = engine.find()
        assert found is not None
        label = f"--filter=label={engine.LABEL}={folder}"
        assert len(found.run(["ps", "--all", "--quiet", label]).split()) == 2
        # as after a crash in the middle: containers run, and the state says that `up` never finished
        file = folder / "cluster.json"
        file.write_text(file.read_text().replace('"up_finished": true', '"up_finished": false'))
        other.down()
        assert found.run(["ps", "--all", "--quiet", label]) == ""
        assert found.run(["network", "ls", "--quiet", label]) == ""
        assert not folder.exists()
    assert set(docker.node_states().values()) == {"IDLE"}  # the other cluster noticed nothing


def test_the_images_tag_changes_with_what_it_is_made_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {image.tag("bookworm"), image.tag("trixie")}
    for file in image.SOURCE.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    monkeypatch.setattr(image, "SOURCE", tmp_path)
    assert image.tag("trixie") in names
    (tmp_path / "packages").write_text("another\n")
    names.add(image.tag("trixie"))
    assert len(names) == 3
