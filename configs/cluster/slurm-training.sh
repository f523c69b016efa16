#!/bin/bash
# Training by four processes that share eight parts of every batch; a requeued job goes on where it was.
#     sbatch configs/cluster/slurm-training.sh train --data cifar10 --arch resnet20-cifar --epochs 28 --shards 8 --out plain
#SBATCH --job-name=ttac-training
#SBATCH --ntasks=4
#SBATCH --cpus-per-task=8
#SBATCH --time=08:00:00
#SBATCH --requeue
#SBATCH --signal=TERM@120

resume=()
[[ ${SLURM_RESTART_COUNT:-0} == 0 ]] || resume=(--resume)
exec mpirun "${TTAC:-ttac}" "$@" --mpi --threads "$SLURM_CPUS_PER_TASK" "${resume[@]}"
