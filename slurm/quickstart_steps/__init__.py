"""The steps of `slurm/quickstart`: set up, train on an embedded cluster, kill a node, tell what happened.

Python's standard library only: it runs before anything is installed.
"""
