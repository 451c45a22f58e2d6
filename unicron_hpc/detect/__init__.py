"""Detection: what the evidence says and how severe it is. Pure: no torch, no Slurm."""
