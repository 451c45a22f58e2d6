"""What we ask of Slurm: submit, node and job state, drain; and Slurm's notations.

The modules `times`, `hostlists`, `signals` and `patterns` are pure grammars that import nothing of this
package but its errors; the settings are checked with them.
"""
