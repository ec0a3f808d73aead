"""Functions that Megatron's ranks call, on the model of the default job."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.algorithms.load import load_algorithm
from agentrl.config.run import RunConfig
from agentrl.errors import HookError
from agentrl.learner.hooks import LearnerHooks
from agentrl.learner.iteration import train_lease
from agentrl.learner.megatron import MegatronBackend
from tests.parity.golden import LEASE, Batch, lineage

MODEL = Path(__file__).resolve().parents[2] / "agentrl" / "envs" / "search_r1" / "model"
SEEN: list[Any] = []


def init(args: Any) -> None:
    from megatron.core import parallel_state

    SEEN.append(("init", parallel_state.is_initialized(), args.lr))


def before_log_prob(args: Any, model: Any, store_prefix: str) -> None:
    SEEN.append(("log_prob", store_prefix, [type(chunk).__name__ for chunk in model]))
    for chunk in model:
        chunk.register_forward_pre_hook(lambda *_: SEEN.append("pass"))
        parameter = next(chunk.parameters())
        parameter.mul_(1.0)  # what it holds may be changed in place


def before_train_step(
    args: Any, rollout_id: int, step_id: int, model: Any, optimizer: Any, opt_param_scheduler: Any
) -> None:
    rates = {group["lr"] for group in optimizer.param_groups}
    gradients = sum(float(p.main_grad.abs().sum()) for c in model for p in c.parameters())
    kinds = [type(chunk).__name__ for chunk in model], type(opt_param_scheduler).__name__
    SEEN.append(("step", rollout_id, step_id, rates, gradients, *kinds))
    if step_id == 1:
        for group in optimizer.param_groups:
            group["lr"] = 0.0


def broken(args: Any) -> None:
    raise OSError("nothing there")


@pytest.fixture
def opened(free_ports: Callable[[int], int]) -> Callable[..., Any]:
    @contextmanager
    def make(cfg: RunConfig, hooks: LearnerHooks) -> Iterator[MegatronBackend]:
        backend = MegatronBackend(
            cfg,
            MODEL,
            rank=0,
            world_size=1,
            master_address="127.0.0.1",
            master_port=free_ports(1),
            num_training_steps=10,
            models=load_algorithm(cfg).needs.models,
            hooks=hooks,
        )
        try:
            yield backend
        finally:
            backend.close()

    return make


def test_functions_are_given_what_the_learner_has(opened: Any) -> None:
    SEEN.clear()
    cfg = RunConfig(
        custom_megatron_init_path=f"{__name__}:init",
        custom_megatron_before_log_prob_hook_path=f"{__name__}:before_log_prob",
        custom_megatron_before_train_step_hook_path=f"{__name__}:before_train_step",
        actor_num_gpus_per_node=1,
        use_kl_loss=True,
        num_steps_per_rollout=2,
        max_staleness=8,
        max_tokens_per_gpu=160,
        lr=1e-3,
    )
    batch, hooks = Batch(1), LearnerHooks(cfg)
    with opened(cfg, hooks) as backend:
        assert SEEN == [("init", True, 1e-3)]
        weights: list[torch.Tensor] = []

        class Looked:
            """Notes the weights before each step."""

            def __getattr__(self, name: str) -> Any:
                return getattr(backend, name)

            def step(self, *args: Any) -> Any:
                weights.append(_weights(backend))
                return backend.step(*args)

        algorithm = load_algorithm(cfg)
        looked: Any = Looked()
        result = train_lease(batch.header, algorithm, looked, lineage(), batch.fetch, hooks)
        weights.append(_weights(backend))
    policy, reference, *steps = [seen for seen in SEEN[1:] if seen != "pass"]
    assert policy == ("log_prob", "", ["DistributedDataParallel"])
    assert reference[:2] == ("log_prob", "ref_")
    assert SEEN.index(policy) < SEEN.index("pass") < SEEN.index(reference)
    kinds = ["DistributedDataParallel"], "OptimizerParamScheduler"
    assert steps == [("step", LEASE, step, {1e-3}, 0.0, *kinds) for step in (0, 1)]
    assert [step.lr for step in result.steps["policy"]] == [1e-3, 0.0]
    before, between, after = weights
    assert not torch.equal(before, between)
    assert torch.equal(between, after)


def _weights(backend: MegatronBackend) -> torch.Tensor:
    return torch.cat([tensor.flatten() for _, tensor in backend.hf_tensors()])


def test_what_a_function_raises_leaves_no_process_group(opened: Any) -> None:
    cfg = RunConfig(actor_num_gpus_per_node=1, custom_megatron_init_path=f"{__name__}:broken")
    said = r"^--custom-megatron-init-path \S+:broken: OSError: nothing there \(.*hooks\.py:\d+\)$"
    with pytest.raises(HookError, match=said), opened(cfg, LearnerHooks(cfg)):
        pass
    assert not torch.distributed.is_initialized()


#: Raises on one of two ranks.
_ON_ONE = """
import torch.distributed as dist

def fails(args, rollout_id, step_id, model, optimizer, opt_param_scheduler):
    if dist.get_rank() == 1:
        raise RuntimeError("rank 1 cannot")

def waits(args, model, store_prefix):
    dist.barrier()  # a function may speak to all ranks
"""


def test_both_of_two_real_ranks_end_where_one_fails(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(_ON_ONE)
    config = {
        "actor_num_gpus_per_node": 2,
        "custom_megatron_before_log_prob_hook_path": f"{tmp_path}/mine.py:waits",
        "custom_megatron_before_train_step_hook_path": f"{tmp_path}/mine.py:fails",
    }
    job = {"config": config, "model_dir": str(MODEL), "target": str(tmp_path / "job")}
    (tmp_path / "jobs").write_text(json.dumps([job]))
    worker = str(Path(__file__).with_name("worker.py"))
    ranks = [
        subprocess.Popen(
            [sys.executable, worker, str(rank), str(tmp_path / "jobs")],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [rank.communicate(timeout=500)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    flag = f"--custom-megatron-before-train-step-hook-path {tmp_path}/mine.py:fails"
    own = rf"{flag}: RuntimeError: rank 1 cannot \({tmp_path}/mine\.py:6\)"
    assert re.search(rf"HookError: {own}", said[1]), said[1]
    assert re.search(rf"HookError: learner rank 1: {own}", said[0]), said[0]
