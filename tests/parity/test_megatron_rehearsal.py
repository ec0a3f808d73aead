"""An imagined step takes what a real one takes: bytes of live tensors, layout by layout."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentrl.learner.footprint import Footprint
from agentrl.models.registry import families
from tests.slices import of_the_day

pytestmark = pytest.mark.real

RANKS = 4
TENSOR = {"tensor_model_parallel_size": 2}
SEQUENCE = TENSOR | {"sequence_parallel": True}
STAGES = {"pipeline_model_parallel_size": 2}
CONTEXT = {"context_parallel_size": 2}
SHARED = {"use_distributed_optimizer": True}
AGAIN = {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "replicas": {},
    "a shared optimizer": SHARED,
    "TP2": TENSOR,
    "TP2, SP, bfloat16": SEQUENCE | SHARED | {"bf16": True},
    "PP4": {"pipeline_model_parallel_size": 4},
    "TP2, SP, PP2, recomputed": SEQUENCE | STAGES | AGAIN | SHARED,
    "PP2, uneven": STAGES | {"decoder_first_pipeline_num_layers": 1},
    "CP2": CONTEXT,
    "CP2, PP2, interleaved": CONTEXT
    | STAGES
    | SHARED
    | {"num_layers_per_virtual_pipeline_stage": 1},
    "TP2, SP, attention recomputed, bfloat16": SEQUENCE
    | {"bf16": True, "recompute_granularity": "selective", "recompute_modules": ["core_attn"]},
}
EXPERTS = {"expert_model_parallel_size": 2}
GATHERED = {"moe_token_dispatcher_type": "allgather"}
#: The tiny members of families with experts; all others are of the model below.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "EP2 of qwen3-moe": ("qwen3-moe", EXPERTS),
    "EP2 of qwen3-moe, uneven": ("qwen3-moe", EXPERTS),
    "EP2 of qwen3-moe, gathered": ("qwen3-moe", EXPERTS | GATHERED),
    "TP2, SP, EP2 of deepseek-v3": ("deepseek-v3", SEQUENCE | EXPERTS | SHARED),
    "PP2, EP2 of glm4-moe": ("glm4-moe", STAGES | EXPERTS),
}
#: How many times an even share the experts of the first rank get; 1 where none is named.
IMBALANCE = {"EP2 of qwen3-moe, uneven": 1.5}
#: Beside the layout.
FLAGS: dict[str, dict[str, Any]] = {
    "TP2": {"use_kl_loss": True, "kl_loss_coef": 0.1},
    "a shared optimizer": {"advantage_estimator": "ppo"},
}
MODEL = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
}


CASES = of_the_day([*LAYOUTS, *FAMILIES], 5)


@pytest.fixture(scope="module")
def found(
    tmp_path_factory: pytest.TempPathFactory,
    run_ranks: Callable[[Path, int, list[dict[str, Any]]], None],
) -> dict[tuple[str, int], list[Footprint]]:
    """For each case, of its first rank and its last: of a real step, and of an imagined one."""
    home = tmp_path_factory.mktemp("footprints")
    jobs = [job(name, home / str(number)) for number, name in enumerate(CASES)]
    run_ranks(home, RANKS, jobs)
    return {
        (name, rank): msgspec.json.decode(
            (home / f"{number}.{rank}.json").read_bytes(), type=list[Footprint]
        )
        for number, name in enumerate(CASES)
        for rank in (0, RANKS - 1)
    }


def job(name: str, target: Path) -> dict[str, Any]:
    """What `worker.py` is to do; the folder `target` has the model."""
    family, megatron = FAMILIES.get(name, (None, LAYOUTS.get(name)))
    target.mkdir()
    model = MODEL if family is None else families()[family].tiny
    (target / "config.json").write_text(json.dumps(model))
    config = {"actor_num_gpus_per_node": RANKS, "max_tokens_per_gpu": 256, "device": "cpu"}
    return {
        "config": config | {"megatron": megatron} | FLAGS.get(name, {}),
        "model_dir": str(target),
        "target": str(target),
        "longest": 96,
        "imbalance": IMBALANCE.get(name, 1.0),
    }


@pytest.mark.parametrize("rank", [0, RANKS - 1])
@pytest.mark.parametrize("case", CASES)
def test_an_imagined_step_takes_what_a_real_one_takes(
    case: str, rank: int, found: dict[tuple[str, int], list[Footprint]]
) -> None:
    real, imagined = found[case, rank]
    assert imagined.kept == real.kept
    assert imagined.logits == real.logits
    # some bytes apart where a number is read out of a tensor
    assert imagined.peak == pytest.approx(real.peak, rel=1e-4)
    assert imagined.collectives
