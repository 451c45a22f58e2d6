"""The planner: the best layout for whatever nodes are left. Pure: no I/O, no torch, no Slurm."""
