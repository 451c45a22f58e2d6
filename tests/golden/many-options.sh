#!/bin/bash
#SBATCH --job-name=tiny
#SBATCH --nodes=5
#SBATCH --ntasks-per-node=1
#SBATCH --no-kill
#SBATCH --output=/scratch/runs/%x-%j.out
#SBATCH --open-mode=append
#SBATCH --export=ALL
#SBATCH --partition=gpu,long
#SBATCH --account=physics
#SBATCH --time=72:00:00
#SBATCH --constraint=[rack1|rack2]
#SBATCH --exclude=n1,n2
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --gres=gpu:8
#SBATCH --no-requeue
#SBATCH --comment='first run, "big" model # 1'
#SBATCH --signal=B:USR2@120
#SBATCH --kill-on-invalid-dep=yes
# Made by unicron-sbatch VERSION from train.yaml. Change train.yaml and submit again.

exec /opt/python/bin/python -m unicron_hpc.supervisor.batch /scratch/runs/.staged-tiny.0123456789ab
