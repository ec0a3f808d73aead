"""The model files of launch scripts: each is accepted or refused with a reason, and accepted means
that the learner builds a shrunk model of exactly its flags and takes a step."""

import re
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentrl.algorithms.rows import LossFn
from agentrl.config.command_line import read_flags
from agentrl.config.megatron import MegatronSettings
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.models.registry import describe_model, families, open_model
from scripts.model_args import FOLDER, arguments, facts, scripts
from tests.parity.alone import open_alone

NAMES = sorted(facts())
DENSE = (
    *("LlamaForCausalLM", "MiMoForCausalLM", "MistralForCausalLM"),
    *("Qwen2ForCausalLM", "Qwen3ForCausalLM"),
)
#: Architectures of which every file is accepted.
TRAINED = (
    *DENSE,
    "DeepseekV3ForCausalLM",
    "Glm4ForCausalLM",
    "Glm4MoeForCausalLM",
    "Glm4MoeLiteForCausalLM",
    "MiniMaxM2ForCausalLM",
    "Qwen3MoeForCausalLM",
    "Qwen3NextForCausalLM",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
)
#: Those of which every file is refused, with the reason.
REFUSED = {
    "GlmMoeDsaForCausalLM": r"GLM-5\) is not supported: its sparse attention takes no packed"
}

#: Small numbers of keys of config.json. Groups of experts stay groups, and shares stay shares.
_SMALL = {
    "num_hidden_layers": 4,
    "first_k_dense_replace": 1,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rotary_dim": 8,
    "vocab_size": 96,
    "max_position_embeddings": 128,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "num_experts": 8,
    "n_routed_experts": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
_FEW_GROUPS = {"n_group": 4, "topk_group": 2}
#: Latent attention has as many of the one as of the other.
_LATENT = {"num_key_value_heads": _SMALL["num_attention_heads"]}


def shrunk(config: dict[str, Any]) -> dict[str, Any]:
    """The same keys with small numbers."""
    small = _SMALL | (_FEW_GROUPS if config.get("n_group", 1) > 1 else {})
    small |= _LATENT if "kv_lora_rank" in config else {}
    return config | {key: value for key, value in small.items() if key in config}


def words(config: dict[str, Any]) -> list[str]:
    return [word for line in arguments(config) for word in line]


def run_of(config: dict[str, Any], directory: Path, make_hf_model: Any) -> RunConfig:
    """The run of a model's flags, with the model in `directory`. Raises ConfigError."""
    given = read_flags(words(config))
    if given.refused:
        raise ConfigError("\n".join(given.refused))
    listed = {name: each for each in families().values() for name in each.architectures}
    family = listed.get(config["architectures"][0])
    if family is None:
        describe_model(config, None, source="config.json")
    else:
        of_transformers = {"model_type": family.tiny["model_type"], "pad_token_id": None}
        eyes = {key: family.tiny[key] for key in ("vision_config",) if key in family.tiny}
        whole = {"max_position_embeddings": 128, **eyes, **config, **of_transformers}
        make_hf_model(whole, directory)
    run = RunConfig(actor_num_gpus_per_node=1, lr=1e-3, **given.values)
    open_model(directory, None).architecture.check(MegatronSettings.from_config(run))
    return run


@pytest.mark.parametrize("name", NAMES)
def test_a_model_file_is_accepted_or_refused_with_a_reason(
    name: str,
    make_hf_model: Any,
    free_ports: Callable[[int], int],
    packed: Any,
    pg_loss: LossFn,
    tmp_path: Path,
) -> None:
    config, reason = shrunk(facts()[name]), ""
    try:
        run = run_of(config, tmp_path, make_hf_model)
    except ConfigError as refusal:
        reason = str(refusal)
    (architecture,) = config["architectures"]
    assert bool(reason) == (architecture in REFUSED), reason
    if reason:
        assert re.search(REFUSED[architecture], reason), reason
        return
    backend = open_alone(run, tmp_path, free_ports(1))
    with closing(backend):
        result = backend.step("policy", [packed([30, 7], 1)], pg_loss)
    assert not result.skipped
    assert result.grad_norm > 0


def test_of_every_architecture_it_is_known_whether_it_is_trained() -> None:
    assert {*TRAINED, *REFUSED} == {
        each for one in facts().values() for each in one["architectures"]
    }


@pytest.mark.parametrize("name", [n for n in NAMES if facts()[n]["architectures"][0] in DENSE])
def test_the_published_numbers_say_what_their_config_json_says(name: str) -> None:
    config = {"max_position_embeddings": 32768, **facts()[name]}
    run = RunConfig(**read_flags(words(facts()[name])).values)
    described = describe_model(config, None, source="config.json")
    described.architecture.check(MegatronSettings.from_config(run))


def test_the_files_are_written_from_the_facts_and_a_shell_reads_the_same_words() -> None:
    assert {path.name: path.read_text() for path in FOLDER.glob("*.sh")} == scripts()
    command = 'for name; do source "$name"; printf "%s\\n" "${MODEL_ARGS[@]}" "$name"; done'
    read = subprocess.run(
        ["bash", "-euc", command, "bash", *(str(FOLDER / f"{name}.sh") for name in NAMES)],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin:/bin"},
    )
    assert read.stdout.splitlines() == [
        word for name in NAMES for word in [*words(facts()[name]), str(FOLDER / f"{name}.sh")]
    ]


def test_another_rotary_base_is_a_variable_away() -> None:
    command = 'source "$1"; printf "%s\\n" "${MODEL_ARGS[@]}"'
    read = subprocess.run(
        ["bash", "-euc", command, "bash", str(FOLDER / "qwen3-8B.sh")],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin:/bin", "MODEL_ARGS_ROTARY_BASE": "5000000"},
    )
    assert "--rotary-base\n5000000\n" in read.stdout
