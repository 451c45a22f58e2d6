"""The commit: one reduction over all ranks, after which an iteration's update counts everywhere."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.distributed as dist

from unicron_hpc.runtime.faults import ProgramFault


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the world.

    Attributes
    ----------
    squared_norm
        Of the gradient as accumulated, before the correction for masked tokens.
    loss_sum, tokens
        Over the global batch.
    saves
        Ranks that were asked for a checkpoint after this iteration: one is enough for all to write it.
    """

    squared_norm: float
    loss_sum: float
    tokens: float
    saves: float = 0.0


def agree(own: Totals, device: torch.device, members: dist.ProcessGroup) -> Totals:
    """Sum over all ranks that compute.

    A rank that comes out of this knows that every rank went in, and so that every rank's gradient sums
    are complete: it may apply the update. All ranks see the same bits.
    """
    values = [own.squared_norm, own.loss_sum, own.tokens, own.saves]
    vector = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(vector, group=members)
    return Totals(*vector.tolist())


def mean_loss_and_norm(totals: Totals, full_tokens: int, iteration: int) -> tuple[float, float]:
    """Mean loss per token and the norm of its gradient.

    Parameters
    ----------
    full_tokens
        Tokens of a global batch without masks; what the accumulated gradient was divided by.

    Raises
    ------
    ProgramFault
        When either is not finite, or no token counts; the same on every rank.
    """
    if totals.tokens <= 0:
        raise ProgramFault(
            f"iteration {iteration}: the loss mask leaves no token of the global batch",
            hint="Check the data: every label of this batch is masked.",
        )
    loss = totals.loss_sum / totals.tokens
    norm = (
        math.sqrt(totals.squared_norm) * full_tokens / totals.tokens if totals.squared_norm >= 0 else math.nan
    )
    if not (math.isfinite(loss) and math.isfinite(norm)):
        raise ProgramFault(
            f"iteration {iteration}: loss {loss}, gradient norm {norm}",
            hint="The training diverged or this batch is damaged: lower the rate or look at the data.",
        )
    return loss, norm
