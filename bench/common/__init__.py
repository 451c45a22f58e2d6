"""What the benches share: places to run, runs being watched, faults, figures, tables."""
