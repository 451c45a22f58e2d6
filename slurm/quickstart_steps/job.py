"""The quickstart's job: submitted, followed, robbed of a node, and followed to its end."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from testcluster.api import Cluster
from testcluster.errors import ClusterError

from quickstart_steps import story
from quickstart_steps.errors import QuickstartError
from quickstart_steps.run_files import Lines, Record, read_summary

#: Seconds without any news from the run after which it is given up.
SILENCE = 150.0
#: Seconds between two looks at the run's files.
_LOOK = 0.2
#: Seconds between two questions to Slurm.
_ASK = 3.0
#: Iterations between two lines about progress.
_STEP = 10
_ENDED = {
    "COMPLETED",
    "FAILED",
    "CANCELLED",
    "TIMEOUT",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "BOOT_FAIL",
    "DEADLINE",
}


class Job:
    """One training on a test cluster.

    Parameters
    ----------
    cluster
        It is up.
    repository
        With the template that is submitted.
    say
        Takes a line about progress.
    """

    def __init__(self, cluster: Cluster, repository: Path, say: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._repository = repository
        self._say = say
        self.id = ""
        self.folder = Path()
        self.kills: list[story.Kill] = []
        self.events = Lines(Path())
        self.metrics = Lines(Path())
        self._slurm_state = ""
        self._asked = 0.0

    def submit(self, iterations: int) -> None:
        """Submit the template, in a folder of its own, so that no earlier run's checkpoint is resumed."""
        folder = self._cluster.shared_dir / time.strftime("quickstart-%H%M%S")
        command = ["unicron-sbatch", "--json", f"--set=train.train_iters={iterations}"]
        command += [f"--set=run_dir={folder}", str(self._repository / "templates" / "gpt-tiny.yaml")]
        self._say("$ " + " ".join(["unicron-sbatch", *command[2:-1], "templates/gpt-tiny.yaml"]))
        try:
            told = json.loads(self._cluster.exec(command).stdout)
        except ClusterError as error:
            raise QuickstartError(str(error), where="unicron-sbatch") from None
        self.id, self.folder = told["job_id"], Path(told["run_dir"])
        self.events = Lines(self.folder / "events.jsonl")
        self.metrics = Lines(self.folder / "metrics.jsonl")

    def run(self, kill_after: Sequence[int]) -> Record:
        """Follow the job to its end; kill a node after each of these iterations.

        Returns
        -------
        dict
            The run's summary.

        Raises
        ------
        QuickstartError
            When it does not end well.
        """
        pending = sorted(kill_after)
        heard = time.monotonic()
        while True:
            events, metrics = self.events.new(), self.metrics.new()
            if events or metrics:
                heard = time.monotonic()
            for event in events:
                self._tell_event(event)
            for line in metrics:
                self._tell_progress(line)
            summary = read_summary(self.folder)
            if summary is not None:
                break
            if pending and self._iteration() >= pending[0] and self._recovered():
                pending.pop(0)
                self._kill()
            self._check_slurm(heard)
            time.sleep(_LOOK)
        for event in self.events.new():
            self._tell_event(event)
        self.metrics.new()
        if summary["state"] != "finished":
            raise QuickstartError(
                f"the training ended as {summary['state']}: {summary.get('cause') or 'no cause was given'}",
                where=f"job {self.id}",
            )
        if pending:
            raise QuickstartError(
                "the training was over before a node could be killed",
                where=f"job {self.id}",
                hint="Give it more iterations: --iterations",
            )
        return summary

    def wait_for_slurm(self, seconds: float = 90.0) -> str:
        """Return how Slurm says that the job ended, e.g. `COMPLETED, exit code 0:0`."""
        deadline = time.monotonic() + seconds
        while True:
            state, code = self._ask_slurm()
            if state in _ENDED:
                return f"{state}, exit code {code}"
            if time.monotonic() > deadline:
                raise QuickstartError(
                    f"the training is over, but {seconds:g} s later Slurm still calls the job {state}",
                    where=f"job {self.id}",
                )
            time.sleep(0.5)

    # ------------------------------------------------------------ details

    def _iteration(self) -> int:
        return int(self.metrics.all[-1]["iteration"]) if self.metrics.all else 0

    def _recovered(self) -> bool:
        """Tell whether nothing is under repair: one fault at a time is easier to read about."""
        return all(story.recovery(self.events.all, kill) is not None for kill in self.kills)

    def _kill(self) -> None:
        node = self._victim()
        self._say("")
        self._say(f"$ slurm/cluster kill-node --name {self._cluster.name} {node}")
        kill = story.Kill(node, time.time())
        self._cluster.kill_node(node)
        self.kills.append(kill)

    def _victim(self) -> str:
        """Return an active node that neither coordinates nor runs the batch script; of the last stage."""
        finished = [event for event in self.events.all if event["type"] == "transition_finished"]
        elected = [event for event in self.events.all if event["type"] == "coordinator_elected"]
        spared = {elected[-1]["node"], elected[0]["node"]}
        gone = {kill.node for kill in self.kills}
        ranks = [rank for rank in finished[-1]["ranks"] if rank["node"] not in spared | gone]
        return str(max(ranks, key=lambda rank: (rank["stage"], -rank["rank"]))["node"])

    def _check_slurm(self, heard: float) -> None:
        now = time.monotonic()
        if now - self._asked >= _ASK:
            self._asked = now
            state, code = self._ask_slurm()
            if state != self._slurm_state and not self.events.all:
                self._say(f"job {self.id} is {state}")
            self._slurm_state = state
            if state in _ENDED and read_summary(self.folder) is None:
                raise QuickstartError(f"ended as {state} ({code}) without a word", where=f"job {self.id}")
        if now - heard > SILENCE:
            raise QuickstartError(
                f"nothing happened for {SILENCE:g} s, the job is {self._slurm_state or 'unknown to Slurm'}",
                where=f"job {self.id}",
            )

    def _ask_slurm(self) -> tuple[str, str]:
        done = self._cluster.exec(["scontrol", "--oneliner", "show", "job", self.id], check=False)
        state = re.search(r"\bJobState=(\w+)", done.stdout)
        code = re.search(r"\bExitCode=(\S+)", done.stdout)
        return state.group(1) if state else "unknown", code.group(1) if code else "unknown"

    def _tell_progress(self, line: Record) -> None:
        iteration = int(line["iteration"])
        if iteration == 1 or iteration % _STEP == 0:
            self._say(
                f"  iteration {iteration:4d}   loss {line['loss']:.4f}   "
                f"{line['iteration_seconds']:.2f} s   {line['world_size']} ranks"
            )

    def _tell_event(self, event: Record) -> None:
        match event["type"]:
            case "job_started":
                self._say(f"job {self.id} has {', '.join(event['nodes'])}; every node imports torch")
            case "agent_lost":
                self._say(f"  {event['node']} is lost: {event['reason']}")
            case "plan_chosen":
                for line in story.layout(event):
                    self._say(f"  {line}")
            case "incident_closed":
                self._say(f"  recovered: iteration {event['iteration']} is committed")
            case "checkpoint_saved":
                self._say(f"  checkpoint of iteration {event['iteration']} is written")


def to_stdout(line: str) -> None:
    """Show a line at once, also through a pipe."""
    print(line)
    sys.stdout.flush()
