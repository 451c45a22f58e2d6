"""Exception propagation: what a Python exception in a rank means."""

from __future__ import annotations

from unicron_hpc.detect.severity import Blame, Finding, Severity
from unicron_hpc.detect.table import Table, table_in_use

#: An exception that no row explains: a fresh process, within the budget of attempts.
UNKNOWN_EXCEPTION = Finding("exception in a rank", Severity.SEV2)


def explain_exception(error: str, table: Table | None = None) -> Finding:
    """Finding for an exception in a job that runs.

    A row that only guesses from the words that the program is wrong does not end a run at once: a fresh
    process tells.

    Parameters
    ----------
    error
        `Class: first line of its text`, or more of the text.
    table
        The rows to go by; those of this process's job when left out.
    """
    row = (table or table_in_use()).find(error, exception=True)
    if row is None:
        return UNKNOWN_EXCEPTION
    if row.vague and row.finding.severity is Severity.PROGRAM:
        return Finding(row.error, Severity.SEV2, Blame.PROGRAM)
    return row.finding
