"""The plan of slime's scripts for dense models, against a count on paper."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agentrl.config.device_defaults import for_device
from agentrl.config.learner_memory import learner_bytes
from agentrl.config.run import RunConfig
from agentrl.learner.megatron import rehearse
from agentrl.models.registry import describe_model
from tests.slices import IS_FULL

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not IS_FULL, reason="forty layers and more, a minute for each model"),
]

AGAIN = {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
}


class Script(NamedTuple):
    """A model and what a script of slime's passes. `offloads`: its optimizer is on the host."""

    layers: int
    hidden: int
    ffn: int
    heads: int
    tied: bool
    tensor: int
    tokens: int
    offloads: bool


SCRIPTS = {
    "run-qwen3-4B.sh": Script(36, 2560, 9728, 32, True, 2, 9216, False),
    "run-qwen3-32B.sh": Script(64, 5120, 25600, 64, False, 8, 20480, True),
}
VOCABULARY, GROUPS, WIDTH, RANKS = 151936, 8, 128, 8


def parameters(it: Script) -> int:
    """Of all but the norms."""
    attention = it.hidden * WIDTH * (2 * it.heads + 2 * GROUPS)
    tables = VOCABULARY * it.hidden * (1 if it.tied else 2)
    return it.layers * (attention + 3 * it.hidden * it.ffn) + tables


def on_paper(it: Script) -> float:
    """Bytes of a rank at the peak."""
    table = VOCABULARY * it.hidden
    # weights and those of the reference in bfloat16, gradients in float32, 12 of the optimizer
    # that replicas share
    replicas = RANKS // it.tensor
    each = 2 + 2 + 4 + (0 if it.offloads else 12 / replicas)
    # of every layer its input is kept, cut by sequence parallelism
    inputs = it.layers * it.tokens * it.hidden * 2 / it.tensor
    # of the layer that is computed again: in the MLP, gate and up, what SiLU makes, their product,
    # and a gradient of each; queries, keys and values before and after their norms, rotated, and
    # the output; the whole hidden states of a few moments
    mlp = 8 * it.tokens * it.ffn * 2 / it.tensor
    heads = 3 * it.tokens * (it.heads + 2 * GROUPS) * WIDTH * 2 / it.tensor
    layer = mlp + heads + 4 * it.tokens * it.hidden * 2
    # at the head: the gradient of its weight in float32, and two in bfloat16 that are added to it
    head = 4 * table * 2 / it.tensor + 3 * it.tokens * it.hidden * 2
    return parameters(it) * each / it.tensor + inputs + max(layer, head)


def config_of(it: Script) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": it.hidden,
        "intermediate_size": it.ffn,
        "num_hidden_layers": it.layers,
        "num_attention_heads": it.heads,
        "num_key_value_heads": GROUPS,
        "head_dim": WIDTH,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000,
        "tie_word_embeddings": it.tied,
        "hidden_act": "silu",
    }


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_takes_what_it_takes_on_paper(script: str, tmp_path: Path) -> None:
    it = SCRIPTS[script]
    offload = {"optimizer_cpu_offload": True, "use_precision_aware_optimizer": True}
    megatron = AGAIN | {
        "tensor_model_parallel_size": it.tensor,
        "sequence_parallel": True,
        **(offload if it.offloads else {}),
    }
    config = RunConfig(
        actor_num_gpus_per_node=RANKS,
        max_tokens_per_gpu=it.tokens,
        use_kl_loss=True,
        megatron=megatron,
    )
    architecture = describe_model(config_of(it), None, source=script).architecture
    found = rehearse(for_device(config, "cuda"), architecture, 0, it.tokens)
    assert found.peak == pytest.approx(on_paper(it), rel=0.05)
    # what --dry-run says of the same flags, by its formulas
    told = learner_bytes(for_device(config, "cuda"), parameters(it))
    assert found.kept == pytest.approx(told, rel=0.01)
