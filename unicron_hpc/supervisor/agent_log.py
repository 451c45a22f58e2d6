"""The agent's log: a thread writes it, since an agent that waits for its own log looks dead to the others."""

from __future__ import annotations

import logging
from pathlib import Path

from unicron_hpc.report.appender import Appender


class AgentLog(logging.Handler):
    """Hands records to an `Appender`.

    Parameters
    ----------
    path
        The log file, appended to.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = Appender(path)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Queue one record."""
        try:
            self._file.append_line((self.format(record) + "\n").encode(errors="replace"))
        except Exception:  # a record that cannot be formatted must not end who logs it
            self.handleError(record)

    def close(self) -> None:
        """Write the rest, as far as the disk takes it in time."""
        self._file.close()
        super().close()
