"""What a model is, read from the config.json of its Hugging Face checkpoint.

transformers is not imported: the learner starts without it. Refused, by name: an architecture
outside `SUPPORTED`, and any feature of a supported one that the model here would not compute.
"""

from pathlib import Path
from typing import Any

import msgspec

from agentrl.errors import ConfigError
from agentrl.learner.megatron.settings import MegatronSettings, flag
from agentrl.model_dir import CONFIG, decoder_config

__all__ = ["SUPPORTED", "Architecture"]

#: Hugging Face architecture -> (queries and keys are normalised, queries, keys and values have a
#: bias). Everything else about these dense decoders is alike.
SUPPORTED: dict[str, tuple[bool, bool]] = {
    "Qwen3ForCausalLM": (True, False),
    "Qwen2ForCausalLM": (False, True),
    "LlamaForCausalLM": (False, False),
}


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """A dense decoder with RMSNorm, rotary positions, grouped queries and a gated SiLU MLP."""

    name: str
    num_layers: int
    hidden_size: int
    ffn_hidden_size: int
    num_attention_heads: int
    num_query_groups: int
    kv_channels: int
    vocab_size: int
    max_position_embeddings: int
    norm_epsilon: float
    rotary_base: float
    qk_layernorm: bool
    add_qkv_bias: bool
    tied_embeddings: bool

    @classmethod
    def from_checkpoint(cls, model_dir: Path) -> "Architecture":
        """Read `model_dir`/config.json. Raises ConfigError for what is missing or unsupported."""
        return cls.from_config(decoder_config(model_dir), source=str(model_dir / CONFIG))

    @classmethod
    def from_config(cls, config: dict[str, Any], *, source: str) -> "Architecture":
        """The architecture that a decoded config.json describes; `source` names it in errors."""
        names = config.get("architectures") or []
        name = names[0] if len(names) == 1 else str(names)
        if name not in SUPPORTED:
            raise ConfigError(
                f"{source}: architecture {name} is not supported; "
                f"supported are {', '.join(SUPPORTED)}"
            )
        qk_layernorm, add_qkv_bias = SUPPORTED[name]
        _refuse_features(config, source)
        try:
            heads = config["num_attention_heads"]
            return cls(
                name=name,
                num_layers=config["num_hidden_layers"],
                hidden_size=config["hidden_size"],
                ffn_hidden_size=config["intermediate_size"],
                num_attention_heads=heads,
                num_query_groups=config.get("num_key_value_heads") or heads,
                kv_channels=config.get("head_dim") or config["hidden_size"] // heads,
                vocab_size=config["vocab_size"],
                max_position_embeddings=config["max_position_embeddings"],
                norm_epsilon=config["rms_norm_eps"],
                rotary_base=float(_rope(config).get("rope_theta", 10000.0)),
                qk_layernorm=qk_layernorm,
                add_qkv_bias=add_qkv_bias,
                tied_embeddings=bool(config.get("tie_word_embeddings", False)),
            )
        except KeyError as error:
            raise ConfigError(f"{source} lacks {error}, which a {name} must have") from None

    def check(self, settings: MegatronSettings) -> None:
        """Refuse architecture flags that contradict the checkpoint and layouts that cannot divide
        the model, with both numbers."""
        for name, mine in self._by_flag().items():
            given = getattr(settings, name)
            if given is not None and given != mine:
                raise ConfigError(
                    f"{flag(name)} is {given} but the checkpoint's config.json says {mine} "
                    f"({self.name}); leave the flag out or use another checkpoint"
                )
        tensor, pipeline = (
            settings.tensor_model_parallel_size,
            settings.pipeline_model_parallel_size,
        )
        for what, number, size, by in (
            ("attention heads", self.num_attention_heads, tensor, "tensor_model_parallel_size"),
            ("key-value heads", self.num_query_groups, tensor, "tensor_model_parallel_size"),
            ("MLP columns", self.ffn_hidden_size, tensor, "tensor_model_parallel_size"),
            ("vocabulary entries", self.vocab_size, tensor, "tensor_model_parallel_size"),
            ("layers", self.num_layers, pipeline, "pipeline_model_parallel_size"),
        ):
            if number % size:
                raise ConfigError(
                    f"{number} {what} cannot be divided by {flag(by)} {size} ({self.name})"
                )

    def _by_flag(self) -> dict[str, Any]:
        alike = (
            "num_layers",
            "hidden_size",
            "ffn_hidden_size",
            "num_attention_heads",
            "num_query_groups",
            "kv_channels",
            "vocab_size",
            "max_position_embeddings",
            "norm_epsilon",
            "rotary_base",
            "qk_layernorm",
            "add_qkv_bias",
        )
        untied = {"untie_embeddings_and_output_weights": not self.tied_embeddings}
        return {name: getattr(self, name) for name in alike} | untied


def _rope(config: dict[str, Any]) -> dict[str, Any]:
    """Rotary parameters: one object in newer files, loose keys in older ones."""
    nested = config.get("rope_parameters") or config.get("rope_scaling") or {}
    loose = {"rope_theta": config["rope_theta"]} if config.get("rope_theta") is not None else {}
    return loose | nested


def _refuse_features(config: dict[str, Any], source: str) -> None:
    rope = _rope(config)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise ConfigError(f"{source}: rope type {kind} is not supported, only default")
    for key, allowed in (
        ("hidden_act", "silu"),
        ("use_sliding_window", False),
        ("attention_bias", False),
        ("mlp_bias", False),
    ):
        if config.get(key, allowed) != allowed:
            raise ConfigError(f"{source}: {key} {config[key]} is not supported, only {allowed}")
