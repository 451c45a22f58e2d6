"""Environment variables that an agent sets in its ranks."""

from __future__ import annotations

#: Run folder, absolute.
RUN_FOLDER = "UNICRON_RUN_FOLDER"
#: Name of the task that the rank works for.
TASK = "UNICRON_TASK"
#: The rank's seat, `node:slot`.
SEAT = "UNICRON_SEAT"
#: Network interface that the groups use; unset: the address that the agents talk over.
INTERFACE = "UNICRON_INTERFACE"
#: Descriptor of the rank's phase page; unset: nobody watches.
PHASE_PAGE = "UNICRON_PHASE_PAGE"
#: What the child of a zygote does: unset for a rank, or `PREPARE_DATA`.
ROLE = "UNICRON_ROLE"
#: The child builds the dataset of its task and ends.
PREPARE_DATA = "prepare-data"
