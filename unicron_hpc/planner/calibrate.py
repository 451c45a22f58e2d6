"""Correct a hardware description by measured iterations, and say how far off it was."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec.structs import replace
from scipy.optimize import least_squares

from unicron_hpc.errors import PlanError
from unicron_hpc.planner.cost import predict
from unicron_hpc.planner.hardware import Hardware
from unicron_hpc.planner.layout import Layout
from unicron_hpc.planner.partition import FloatArray
from unicron_hpc.planner.work import TaskWork

#: What is corrected, each by a factor of its own: figures that multiply time together share one.
FACTORS: tuple[tuple[str, ...], ...] = (
    ("efficiency",),
    ("layer_seconds",),
    ("stage_seconds",),
    ("link_seconds",),
    ("intra_latency", "inter_latency"),
    ("intra_bandwidth", "inter_bandwidth"),
    ("iteration_seconds",),
)
#: Figures of which more means less time.
_RATES = {"efficiency", "intra_bandwidth", "inter_bandwidth", "host_cores"}
#: Weight of a factor's distance from 1 against a measurement's relative error. A figure that the measurements
#: do not show stays as described; one that they show is corrected freely.
PRIOR = 0.03


class Measured(msgspec.Struct, frozen=True):
    """One layout and its measured seconds per iteration (the median of several, say)."""

    layout: Layout
    seconds: float


class Calibration(msgspec.Struct, frozen=True):
    """The corrected description.

    Attributes
    ----------
    hardware
        To plan with from now on.
    before, after
        Median relative error of the predictions over the measurements.
    """

    hardware: Hardware
    before: float
    after: float


def calibrate(work: TaskWork, measured: Sequence[Measured]) -> Calibration:
    """Fit the description's figures to measurements, in the least-squares sense of relative errors.

    Parameters
    ----------
    work
        The task, with the description to correct.
    measured
        At least one; the more the layouts differ, the more figures they tell apart.

    Raises
    ------
    PlanError
        Without a measurement, or with one that is not a positive time.
    """
    if not measured or any(not m.seconds > 0 for m in measured):
        raise PlanError(
            "calibration needs measured iterations with positive seconds", where=f"task '{work.name}'"
        )
    seconds = np.array([m.seconds for m in measured])

    def misfit(logs: FloatArray) -> FloatArray:
        corrected = replace(work, hardware=_corrected(work.hardware, logs))
        errors = np.log(_predicted(corrected, measured) / seconds)
        result: FloatArray = np.concatenate([errors, PRIOR * logs])
        return result

    # One common factor first: from there the fit only has to tell the parts apart.
    common = float(np.log(seconds / _predicted(work, measured)).mean())
    fit = least_squares(misfit, np.full(len(FACTORS), common), loss="soft_l1", f_scale=0.2)
    hardware = _corrected(work.hardware, fit.x)
    return Calibration(
        hardware,
        median_error(work, measured),
        median_error(replace(work, hardware=hardware), measured),
    )


def median_error(work: TaskWork, measured: Sequence[Measured]) -> float:
    """Median over the layouts of |predicted / measured - 1|."""
    predicted = _predicted(work, measured)
    return statistics.median(float(abs(p / m.seconds - 1)) for p, m in zip(predicted, measured, strict=True))


def _predicted(work: TaskWork, measured: Sequence[Measured]) -> FloatArray:
    return np.array([predict(m.layout, work).iteration_seconds for m in measured])


def _corrected(hardware: Hardware, logs: FloatArray) -> Hardware:
    """Every time that a figure stands for, times e to its log."""
    changes = {}
    for names, log in zip(FACTORS, logs, strict=True):
        for name in names:
            factor = float(np.exp(-log if name in _RATES else log))
            value = getattr(hardware, name)
            # Without shared cores there is nothing to correct.
            changes[name] = None if value is None else value * factor
    return replace(hardware, **changes)
