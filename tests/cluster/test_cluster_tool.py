"""The embedded test cluster is a real Slurm, breaks as told, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from testcluster import cleanup, procs, state
from testcluster.api import Cluster
from testcluster.errors import ClusterError

from .conftest import require_driver
from .waiting import until

pytestmark = pytest.mark.cluster
PYTHON = Path(__file__).resolve().parents[2] / ".venv" / "bin" / "python"
needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can make accounts; a plain user is all there is"
)


def sleeping_job(cluster: Cluster, nodes: int) -> str:
    """Submit a job that sleeps on every node, and return its id once every node's task has said so."""
    script = f"srun --no-kill -N{nodes} sh -c 'touch started-$SLURM_JOB_ID-$SLURMD_NODENAME; exec sleep 1000'"
    job = cluster.exec(["sbatch", "--parsable", "--no-kill", f"-N{nodes}", f"--wrap={script}"]).stdout.strip()
    until(lambda: len(list(cluster.shared_dir.glob(f"started-{job}-*"))), lambda count: count == nodes)
    return job


def names_on(cluster: Cluster, node: str) -> list[str]:
    """Return the names of a node's processes; [] for a dead node."""
    return sorted((cluster.processes(node) or {}).values())


class TestAsTheirUserSeesIt:
    def test_a_batch_job_of_the_plain_user_runs_on_three_nodes_with_the_repositorys_python(
        self, embedded: Cluster
    ) -> None:
        code = "import os, msgspec; print('from', os.environ['SLURMD_NODENAME'], os.getuid())"
        script = f'srun -N3 --ntasks-per-node=1 {PYTHON if PYTHON.exists() else sys.executable} -c "{code}"'
        embedded.exec(["sbatch", "--wait", "-N3", "--output=out-%j.txt", f"--wrap={script}"])
        (output,) = embedded.shared_dir.glob("out-*.txt")
        lines = sorted(output.read_text().split("\n"))
        uid = pwd.getpwnam(embedded.status()["user"]).pw_uid
        assert lines == ["", *(f"from n{number} {uid}" for number in (1, 2, 3))]

    def test_exec_passes_exit_code_input_and_output_through(self, embedded: Cluster) -> None:
        done = embedded.exec(["sh", "-c", "cat; echo trouble >&2; exit 7"], input="words", check=False)
        assert (done.returncode, done.stdout, done.stderr) == (7, "words", "trouble\n")

    def test_exec_passes_signals_on(self, embedded: Cluster) -> None:
        script = "trap 'echo got it; exit 9' TERM; echo ready; while :; do sleep 0.05; done"
        command = embedded.exec_command(["sh", "-c", script])
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=embedded.shared_dir) as process:
            assert process.stdout is not None
            try:
                assert process.stdout.readline() == "ready\n"
                process.send_signal(signal.SIGTERM)
                assert process.communicate(timeout=30)[0] == "got it\n"
            finally:
                process.kill()
        assert process.returncode == 9

    def test_exec_on_a_node_knows_the_nodes_name(self, embedded: Cluster) -> None:
        assert embedded.exec(["printenv", "SLURMD_NODENAME"], node="n2").stdout == "n2\n"

    def test_the_exports_make_slurms_commands_talk_to_the_cluster(self, embedded: Cluster) -> None:
        script = f"{embedded.call('env')}sinfo --noheader --Node --format=%N"
        done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=30, check=True)
        assert done.stdout.split() == [f"n{number}" for number in range(1, 7)]

    @needs_root
    def test_the_plain_user_has_no_privileges_and_a_home(self, embedded: Cluster) -> None:
        script = 'id -u; test ! -w /etc/passwd && touch "$HOME/mine" && test ! -r /etc/shadow'
        assert int(embedded.exec(["sh", "-c", script]).stdout) != 0


class TestDraining:
    DRAIN = ("scontrol", "update", "NodeName=n5", "State=DRAIN", "Reason=test")

    @needs_root
    def test_is_refused_to_the_plain_user(self, embedded: Cluster) -> None:
        with pytest.raises(ClusterError, match="Invalid user id"):
            embedded.exec(self.DRAIN)
        assert embedded.node_states()["n5"] == "IDLE"

    def test_is_allowed_to_the_administrator_and_undone_by_restore(self, embedded: Cluster) -> None:
        embedded.exec(self.DRAIN, admin=True)
        assert embedded.node_states()["n5"] == "DRAINED"
        embedded.restore_node("n5")
        assert embedded.node_states()["n5"] == "IDLE"


class TestFailures:
    def test_a_killed_node_loses_every_process_and_slurm_finds_it_down(self, embedded: Cluster) -> None:
        job = sleeping_job(embedded, 3)
        victims = embedded.processes("n2")
        assert victims is not None
        assert "sleep" in victims.values()
        others = {node: names_on(embedded, node) for node in ("n1", "n3")}

        embedded.kill_node("n2")

        gone = (procs.read_process(pid) for pid in victims)
        assert [process for process in gone if process is not None and process.state != "Z"] == []
        assert {node: names_on(embedded, node) for node in ("n1", "n3")} == others
        until(embedded.node_states, lambda states: states["n2"].startswith("DOWN"), seconds=90)
        assert embedded.exec(["squeue", "--noheader", "--format=%T", f"--jobs={job}"]).stdout == "RUNNING\n"
        assert names_on(embedded, "n3") == others["n3"]

        embedded.restore_node("n2")
        assert embedded.node_states()["n2"] == "IDLE"
        embedded.exec(["srun", "-w", "n2", "true"])

    def test_no_process_outruns_the_kill_by_forking(self, embedded: Cluster) -> None:
        # each generation lives 3 ms, an orphan in a session of its own: a list of pids is old when read
        runner = "import os, time\nwhile os.fork() == 0:\n    os.setsid()\n    time.sleep(0.002)\n"
        runner += "time.sleep(0.001)\n"
        (embedded.shared_dir / "runner.py").write_text(runner)
        interpreter = str(PYTHON) if PYTHON.exists() else sys.executable
        job = embedded.exec(
            ["sbatch", "--parsable", "-w", "n4", f"--wrap={interpreter} -S runner.py; sleep 1000"]
        ).stdout.strip()
        user = {pwd.getpwnam(embedded.status()["user"]).pw_uid}
        until(lambda: "python" in " ".join(names_on(embedded, "n4")), bool)

        embedded.kill_node("n4")

        alive = {process.name for process in procs.owned_by(user).values()}
        assert not any("python" in name for name in alive), f"job {job} lives on as {alive}"

    def test_a_paused_node_stops_and_goes_on_with_the_same_processes(self, embedded: Cluster) -> None:
        sleeping_job(embedded, 2)
        before = embedded.processes("n2")
        assert before is not None
        embedded.pause_node("n2")
        found = [procs.read_process(pid) for pid in before]
        assert {process.state for process in found if process is not None} == {"T"}
        embedded.resume_node("n2")
        assert embedded.processes("n2") == before
        found = [procs.read_process(pid) for pid in before]
        assert all(process is not None and process.state != "T" for process in found)

    def test_what_embedded_nodes_cannot_do_is_refused_with_the_way_out(self, embedded: Cluster) -> None:
        with pytest.raises(ClusterError, match="--driver docker"):
            embedded.cut_node("n1")

    def test_an_unknown_node_is_named_with_those_that_exist(self, embedded: Cluster) -> None:
        with pytest.raises(ClusterError, match=r"n9: no such node\n.*n1, n2"):
            embedded.kill_node("n9")


@pytest.fixture
def small() -> Iterator[Cluster]:
    """A cluster that is not up yet, for tests of `up` and `down` themselves."""
    require_driver("embedded")
    with Cluster(f"s{os.getpid()}") as cluster:
        yield cluster


def traces(cluster: Cluster, folder: Path) -> list[str]:
    """Return whatever of a cluster can still be found on this machine."""
    left = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            # a daemon names the folder among its arguments, a task of a job in its environment
            told = b"".join((entry / name).read_bytes() for name in ("cmdline", "environ"))
            left += [f"process {entry.name}"] if entry.name.isdigit() and str(folder).encode() in told else []
    left += [
        f"mount {line}"
        for line in Path("/proc/self/mountinfo").read_text().splitlines()
        if str(folder) in line
    ]
    left += [f"folder {folder}"] if folder.exists() else []
    accounts = {entry.pw_name for entry in pwd.getpwall()}
    return left + [f"account {name}" for name in cleanup.account_names(cluster.name) if name in accounts]


class TestUpAndDown:
    def test_down_leaves_nothing_behind_even_under_a_running_job(self, small: Cluster) -> None:
        small.up(nodes=2)
        folder = Path(small.status()["folder"])
        sleeping_job(small, 2)
        assert traces(small, folder) != []
        small.down()
        assert traces(small, folder) == []
        small.down()  # once more does no harm

    def test_a_second_up_is_refused_unless_reuse_is_asked_for(self, small: Cluster) -> None:
        small.up(nodes=2)
        with pytest.raises(ClusterError, match="is up already"):
            small.up(nodes=2)
        small.call("up", "--nodes=2", "--reuse")
        with pytest.raises(ClusterError, match="is up with 2 nodes"):
            small.call("up", "--nodes=3", "--reuse")

    def test_up_after_a_crash_clears_what_is_left_and_starts_anew(self, small: Cluster) -> None:
        small.up(nodes=2)
        told = small.status()
        slurmd = {pid for node in told["nodes"].values() for pid in map(int, node["processes"])}
        # as after a crash in the middle: daemons run, and the state says that `up` never finished
        file = Path(told["folder"]) / "cluster.json"
        file.write_text(file.read_text().replace('"up_finished": true', '"up_finished": false'))
        small.up(nodes=3)
        assert [pid for pid in slurmd if (found := procs.read_process(pid)) and found.state != "Z"] == []
        assert small.node_states() == {"n1": "IDLE", "n2": "IDLE", "n3": "IDLE"}

    def test_down_finds_a_cluster_whose_keepers_and_state_are_lost(self, small: Cluster) -> None:
        small.up(nodes=2)
        folder = Path(small.status()["folder"])
        for file in (folder / "run").glob("*.keeper"):
            os.kill(int(file.read_text().split()[0]), signal.SIGKILL)
            file.unlink()
        (folder / "cluster.json").unlink()
        small.down()
        assert traces(small, folder) == []

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
    def test_nothing_is_left_of_an_up_that_is_killed_in_the_middle(
        self, small: Cluster, number: signal.Signals
    ) -> None:
        # more CPUs than there are, and Slurm told to mind: the nodes never get into service
        never = ["--nodes=1", "--cpus-per-node=4096", "--set=SlurmdParameters=shutdown_on_reboot"]
        with subprocess.Popen(small.command("up", *never), stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            line = process.stderr.readline()
            while "nodes in service" not in line:
                line = process.stderr.readline()
                assert line != ""
            folder = state.base_folder() / small.name
            process.send_signal(number)
            process.stderr.read()
        assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
        if number == signal.SIGKILL:
            assert traces(small, folder) != []
            small.down()
        assert traces(small, folder) == []

    def test_an_up_that_cannot_work_quotes_the_daemon_and_clears_up(self, small: Cluster) -> None:
        with pytest.raises(ClusterError, match=r"slurm(ctld|d-n1).*(?s:.*)NoSuchThing"):
            small.up(nodes=1, settings={"NoSuchThing": "1"})
        with pytest.raises(ClusterError, match="no cluster is up"):
            small.status()

    def test_a_name_that_no_account_could_bear_is_refused(self) -> None:
        with pytest.raises(ClusterError, match="cannot be a cluster's name"):
            Cluster("Not/a/name").up(nodes=1)


COPIED = Path(__file__).resolve().parents[2] / "slurm"


@needs_root
class TestOtherPlacesAndPeople:
    def test_the_plain_user_reaches_a_clone_below_a_folder_that_only_root_may_enter(
        self, tmp_path: Path
    ) -> None:
        require_driver("embedded")
        (tmp_path / "closed").mkdir(mode=0o700)
        tool = shutil.copytree(COPIED, tmp_path / "closed" / "clone" / "slurm") / "cluster"
        name = f"--name=c{os.getpid()}"
        subprocess.run([tool, "up", name, "--nodes=1"], check=True, stdin=subprocess.DEVNULL, timeout=120)
        try:
            script = 'test "$(id -u)" -ne 0 && srun -N1 cat "$0" && ls "$1"'
            command = [tool, "exec", name, "--", "sh", "-c", script, tool, tmp_path / "closed"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
            assert done.stdout == tool.read_text() + "clone\n"
            assert (tmp_path / "closed").stat().st_mode & 0o777 == 0o700
        finally:
            subprocess.run([tool, "down", name], check=True, timeout=120)

    def test_a_plain_user_can_have_a_cluster_too(self) -> None:
        require_driver("embedded")
        if not Path("/usr/bin/python3").exists():
            pytest.skip("no python3 outside root's folders that a plain user could run")
        folder = Path(tempfile.mkdtemp(prefix="plain-", dir="/tmp"))
        try:
            folder.chmod(0o755)
            tool = shutil.copytree(COPIED, folder / "slurm") / "cluster"
            where = [f"--name=p{os.getpid()}"]

            def run(verb: str, *arguments: str) -> str:
                return subprocess.run(
                    [tool, verb, *where, *arguments],
                    user="nobody",
                    group="nogroup",
                    extra_groups=[],
                    cwd="/tmp",
                    timeout=120,
                    check=True,
                    env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    text=True,
                ).stdout

            run("up", "--nodes=2")
            try:
                assert run("exec", "--", "srun", "-N2", "id", "-un") == "nobody\nnobody\n"
                run("kill-node", "n2")
                run("restore-node", "n2")
                assert "dead" not in run("status")
            finally:
                run("down")
            assert procs.owned_by({pwd.getpwnam("nobody").pw_uid}) == {}
        finally:
            shutil.rmtree(folder)
