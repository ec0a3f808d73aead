#!/bin/bash
# agentrl on nodes that Slurm gives: Ray on each, the program on the first.
#
#     sbatch docs/cluster/slurm.sh
#
# Wanted on every node: this clone and its .venv under the same path, a local /scratch, and /shared.
#SBATCH --job-name=agentrl
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --exclusive
#SBATCH --time=24:00:00

set -euo pipefail
cd "${SLURM_SUBMIT_DIR}"
source .venv/bin/activate

port=6379
mapfile -t nodes < <(scontrol show hostnames "${SLURM_JOB_NODELIST}")
head=$(srun --nodes=1 --ntasks=1 --nodelist="${nodes[0]}" hostname --ip-address | awk '{print $1}')
export RAY_worker_niceness=0

# Each step stays until the job ends, and takes what it started along.
srun --overlap --nodes=1 --ntasks=1 --nodelist="${nodes[0]}" \
    ray start --head --node-ip-address="${head}" --port="${port}" --block &
for node in "${nodes[@]:1}"; do
    srun --overlap --nodes=1 --ntasks=1 --nodelist="${node}" \
        ray start --address="${head}:${port}" --block &
done
until [ "$(ray status --address="${head}:${port}" 2>/dev/null | grep -c node_)" -ge "${#nodes[@]}" ]; do
    sleep 2
done

agentrl doctor --ray-address "${head}:${port}" --save /shared/checkpoints
python train_async.py --ray-address "${head}:${port}" \
    --run-dir /scratch/runs --save "/shared/checkpoints/${SLURM_JOB_ID}" \
    --save-hf "/shared/models/${SLURM_JOB_ID}" --port-range 20000-20999 \
    --actor-num-nodes 1 --actor-num-gpus-per-node 8 \
    --rollout-num-gpus 8 --rollout-num-gpus-per-engine 2 --num-agent-workers 2
