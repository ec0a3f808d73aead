"""One of many ranks, alone in this process: what it sends, and that it leaves nothing behind."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from agentrl.config.device_defaults import for_device
from agentrl.config.run import RunConfig
from agentrl.learner.footprint import Collective
from agentrl.learner.megatron import rehearse
from agentrl.models.registry import describe_model, families

pytestmark = pytest.mark.real

TOKENS = 128
MODEL = describe_model(dict(families()["qwen3"].tiny), None, source="the tiny one").architecture


def sent(ranks: int, rank: int, **megatron: object) -> list[Collective]:
    config = RunConfig(
        actor_num_gpus_per_node=ranks, max_tokens_per_gpu=TOKENS, megatron=dict(megatron)
    )
    found = rehearse(for_device(config, "cuda"), MODEL, rank, TOKENS)
    return list(found.collectives)


def test_a_stage_sends_hidden_states_of_each_micro_batch_and_the_last_their_gradients() -> None:
    for rank in (0, 3):
        (one,) = [it for it in sent(4, rank, pipeline_model_parallel_size=2) if it.kind == "send"]
        assert (one.group, one.ranks, one.calls) == ("pipeline", 2, 2)
        assert one.num_bytes == 2 * TOKENS * MODEL.hidden_size * 2  # bfloat16


def test_replicas_of_any_number_share_gradients_and_weights() -> None:
    data = [it for it in sent(128, 127, tensor_model_parallel_size=2) if it.group == "data"]
    assert [(it.kind, it.ranks) for it in data] == [("reduce_scatter", 64), ("allgather", 64)]
    gradients, weights = (it.num_bytes for it in data)
    assert gradients == 2 * weights  # float32 against bfloat16


def test_a_critic_of_the_users_is_rehearsed_as_one_that_ships(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from agentrl.algorithms.ppo import Ppo\n\nclass Mine(Ppo):\n    pass\n"
    )

    def kept(estimator: str) -> int:
        config = RunConfig(
            actor_num_gpus_per_node=4, max_tokens_per_gpu=TOKENS, advantage_estimator=estimator
        )
        return rehearse(for_device(config, "cuda"), MODEL, 0, TOKENS).kept

    assert kept(f"{tmp_path}/mine.py") == kept("ppo") > kept("grpo")


def test_nothing_is_left_of_the_ranks() -> None:
    before = dist.new_group, dist.all_gather_object
    sent(8, 0)
    assert not dist.is_initialized()
    assert (dist.new_group, dist.all_gather_object) == before
    assert torch.zeros(1).sum().item() == 0.0
    assert not torch.zeros(1).is_cuda


def test_latent_attention_is_imagined_with_context_parallelism() -> None:
    """Its values are narrower than its keys, and the kernel has one width."""
    tiny = describe_model(dict(families()["deepseek-v3"].tiny), None, source="tiny").architecture
    megatron = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
    for size in (1, 2):
        config = RunConfig(
            actor_num_gpus_per_node=4,
            max_tokens_per_gpu=TOKENS,
            megatron=megatron | {"context_parallel_size": size},
        )
        assert rehearse(for_device(config, "cuda"), tiny, 0, TOKENS).activations > 0
