"""The Python environment `.venv` of the repository: made where missing, completed where not whole."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from quickstart_steps import requirements, torch_build
from quickstart_steps.errors import QuickstartError


class Environment:
    """`.venv` of a clone.

    Parameters
    ----------
    repository
        The clone.
    torch_index
        Address of a package index to take torch from; '' for where pip is configured to look.
    """

    def __init__(self, repository: Path, torch_index: str = "") -> None:
        self.repository = repository
        self.folder = repository / ".venv"
        self.python = self.folder / "bin" / "python"
        self._torch_index = torch_index

    def works(self) -> bool:
        """Tell whether its interpreter runs, is new enough, and has pip."""
        if not self.python.exists():
            return False
        test = "import sys, pip; sys.exit(sys.version_info < (3, 11))"
        try:
            done = subprocess.run(
                [str(self.python), "-c", test],
                capture_output=True,
                stdin=subprocess.DEVNULL,
                timeout=60,
                check=False,
            )
        except OSError:
            return False
        return done.returncode == 0

    def missing(self) -> list[str]:
        """Return the requirements that are not installed."""
        wanted = [requirements.TORCH if _name(text) == "torch" else text for text in self._wanted()]
        if not self.works():
            return [*wanted, "unicron-hpc"]
        # Any torch that setup.cfg allows will do, if it is there.
        unmet = requirements.unmet(self.python, self.repository, self._wanted())
        return [requirements.TORCH if _name(text) == "torch" else text for text in unmet]

    def complete(self, missing: Sequence[str]) -> None:
        """Make the environment and install what is `missing`."""
        if not missing:
            return
        if not self.works() or (requirements.TORCH in missing and not self._is_of_this_python()):
            self._make()  # without torch in it, it is a first try with another Python, and as good as empty
        if requirements.TORCH in missing:
            options = ["--index-url", self._torch_index] if self._torch_index else []
            torch_build.check(self.python, requirements.TORCH, options)
            self._pip(["install", *options, requirements.TORCH])
        self._pip(["install", "--editable", f".[{','.join(requirements.EXTRAS)}]"])
        left = self.missing()
        if left:
            raise QuickstartError(
                f"pip ended well, but these are not there: {' '.join(left)}",
                where=str(self.folder),
                hint=f"Remove {self.folder} and run this again.",
            )

    def _wanted(self) -> list[str]:
        return requirements.wanted(self.repository)

    def _is_of_this_python(self) -> bool:
        """Tell whether it was made with the release of Python that runs this."""
        return (self.folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}").is_dir()

    def _make(self) -> None:
        print(f"making {self.folder} with {sys.executable}", flush=True)
        command = [sys.executable, "-m", "venv", "--clear", str(self.folder)]
        done = subprocess.run(
            command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300, check=False
        )
        if done.returncode != 0:
            raise QuickstartError(
                (done.stderr.strip() or done.stdout.strip() or f"ended with code {done.returncode}"),
                where=" ".join(command),
                hint="May you write to this folder? Another Python: UNICRON_PYTHON=/path/to/python3.11",
            )

    def _pip(self, words: list[str]) -> None:
        quiet = [] if sys.stdout.isatty() else ["--quiet"]
        print(f"pip {' '.join(words)}", flush=True)
        command = [str(self.python), "-m", "pip", "--no-input", "--disable-pip-version-check", *quiet, *words]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, cwd=self.repository, timeout=3600, check=False
        )
        if done.returncode != 0:
            raise QuickstartError(
                f"ended with code {done.returncode}; its own words are above",
                where=f"pip {' '.join(words)}",
                hint="Does this machine reach a package index? pip's settings and variables (PIP_INDEX_URL,\n"
                "PIP_PROXY, ...) are respected. What was installed stays; this goes on from there.",
            )


def _name(requirement: str) -> str:
    """Return the name of the package in a requirement of setup.cfg."""
    end = next((at for at, letter in enumerate(requirement) if letter in "<>=!~[ ;"), len(requirement))
    return requirement[:end]
