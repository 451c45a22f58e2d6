#!/bin/bash
#SBATCH --job-name=tiny
#SBATCH --nodes=5
#SBATCH --ntasks-per-node=1
#SBATCH --no-kill
#SBATCH --output=/scratch/runs/%x-%j.out
#SBATCH --open-mode=append
#SBATCH --export=ALL
#SBATCH --time=72:00:00
# Made by unicron-sbatch VERSION from train.yaml. Change train.yaml and submit again.

exec /opt/python/bin/python -m unicron_hpc.supervisor.batch /scratch/runs/.staged-tiny.0123456789ab
