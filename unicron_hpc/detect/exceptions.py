"""Exception propagation: what a Python exception in a rank means."""

from __future__ import annotations

from unicron_hpc.detect.severity import Finding, Severity
from unicron_hpc.detect.table import Table, table_in_use

#: An exception that no row explains: a fresh process, within the budget of attempts.
UNKNOWN_EXCEPTION = Finding("exception in a rank", Severity.SEV2)


def explain_exception(error: str, table: Table | None = None) -> Finding:
    """Finding for an exception.

    Parameters
    ----------
    error
        `Class: first line of its text`, or more of the text.
    table
        The rows to go by; those of this process's job when left out.
    """
    row = (table or table_in_use()).find(error, exception=True)
    return UNKNOWN_EXCEPTION if row is None else row.finding
