#!/bin/bash
#SBATCH --job-name=testbed-transports
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=00:30:00
# One torchrun on each node: sbatch examples/cluster/slurm.sh [gloo|testbed]. The package is installed in .venv of the
# directory that the job is submitted from, which every node sees.
set -euo pipefail

BACKEND="${1:-testbed}"
export HEAD_NODE
HEAD_NODE=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export OMP_NUM_THREADS="$SLURM_CPUS_PER_TASK"

# What crosses the network, and by which interface; ours and gloo's.
export TESTBED_COLLECTIVE=ring TESTBED_CHANNEL=tcp TESTBED_INTERFACE=ib0 GLOO_SOCKET_IFNAME=ib0

srun .venv/bin/torchrun \
  --nnodes="$SLURM_JOB_NUM_NODES" \
  --nproc-per-node=1 \
  --rdzv-id="$SLURM_JOB_ID" \
  --rdzv-backend=c10d \
  --rdzv-endpoint="$HEAD_NODE:29400" \
  examples/ddp.py --backend "$BACKEND"
