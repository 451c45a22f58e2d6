"""How much Hypothesis tries in these tests: enough to find what is wrong, on two busy cores."""

from __future__ import annotations

from hypothesis import settings

#: No deadline: how long an example takes says nothing on a shared machine.
few = settings(max_examples=40, deadline=None)
steps = settings(max_examples=25, stateful_step_count=25, deadline=None)
