"""The commands `unicron-sbatch` and `unicron`; thin."""
