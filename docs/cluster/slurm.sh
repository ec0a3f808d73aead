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
# The address by which the others find the first node: that of its name, or, where the name means
# loopback there, the first of its interfaces. Set HEAD_ADDRESS if neither is right.
addresses() {
    for option in --ip-address --all-ip-addresses; do
        srun --nodes=1 --ntasks=1 --nodelist="${nodes[0]}" hostname "${option}" | tr -s ' ' '\n'
    done
}
head=${HEAD_ADDRESS:-$(addresses | awk '/^[0-9.]+$/ && !/^127\./ && !found++')}
export RAY_worker_niceness=0

# Each step stays until the job ends, and takes what it started along.
srun --overlap --nodes=1 --ntasks=1 --nodelist="${nodes[0]}" \
    ray start --head --node-ip-address="${head}" --port="${port}" --block &
for node in "${nodes[@]:1}"; do
    srun --overlap --nodes=1 --ntasks=1 --nodelist="${node}" \
        ray start --address="${head}:${port}" --block &
done
joined() {
    ray status --address="${head}:${port}" 2>/dev/null | grep -c node_ || true
}
tries=150
until [ "$(joined)" -ge "${#nodes[@]}" ]; do
    if [ $((tries--)) -eq 0 ]; then
        echo "$(joined) of ${#nodes[@]} nodes joined Ray at ${head}:${port} within 5 minutes" >&2
        exit 1
    fi
    sleep 2
done

agentrl doctor --ray-address "${head}:${port}" --save /shared/checkpoints
python train_async.py --ray-address "${head}:${port}" \
    --run-dir /scratch/runs --save "/shared/checkpoints/${SLURM_JOB_ID}" \
    --save-hf "/shared/models/${SLURM_JOB_ID}" --port-range 20000-20999 \
    --actor-num-nodes 1 --actor-num-gpus-per-node 8 \
    --rollout-num-gpus 8 --rollout-num-gpus-per-engine 2 --num-agent-workers 2
