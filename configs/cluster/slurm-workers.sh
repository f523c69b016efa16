#!/bin/bash
# Workers on a Slurm cluster, as many as the array has tasks. Where the queue and the store are is taken from the environment:
#     export TTAC_QUEUE=nats://HOST TTAC_STORE=s3://BUCKET/PREFIX
#     sbatch --array=1-15 configs/cluster/slurm-workers.sh
#SBATCH --job-name=ttac
#SBATCH --array=1-4
#SBATCH --cpus-per-task=8
#SBATCH --time=08:00:00
#SBATCH --requeue
# Two minutes before the time is up the workers put back what they have, with a checkpoint.
#SBATCH --signal=TERM@120

exec srun --cpus-per-task="$SLURM_CPUS_PER_TASK" \
    "${TTAC:-ttac}" work --until-empty --threads "$SLURM_CPUS_PER_TASK"
