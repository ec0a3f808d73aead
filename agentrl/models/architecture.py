"""The sizes and switches of a decoder, under megatron-core's names."""

import msgspec

from agentrl.config.megatron import MegatronSettings, flag
from agentrl.errors import ConfigError

__all__ = ["Architecture"]


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """A dense decoder with RMSNorm, rotary positions, grouped queries and a gated SiLU MLP. `name`
    is its Hugging Face architecture. A family may derive from it: a further field goes to the field
    of megatron-core's TransformerConfig that has its name."""

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

    def check(self, settings: MegatronSettings) -> None:
        """Refuse architecture flags that contradict the checkpoint and layouts that cannot divide
        the model, with both numbers."""
        told = msgspec.structs.asdict(self)
        told["untie_embeddings_and_output_weights"] = not self.tied_embeddings
        for name in settings.__struct_fields__:
            given = getattr(settings, name)
            if given is not None and name in told and given != told[name]:
                raise ConfigError(
                    f"{flag(name)} is {given} but the checkpoint's config.json says {told[name]} "
                    f"({self.name}); leave the flag out or use another checkpoint"
                )
        for what, number, by in (
            ("attention heads", self.num_attention_heads, "tensor_model_parallel_size"),
            ("key-value heads", self.num_query_groups, "tensor_model_parallel_size"),
            ("MLP columns", self.ffn_hidden_size, "tensor_model_parallel_size"),
            ("vocabulary entries", self.vocab_size, "tensor_model_parallel_size"),
            ("layers", self.num_layers, "pipeline_model_parallel_size"),
        ):
            if number % (size := getattr(settings, by)):
                raise ConfigError(
                    f"{number} {what} cannot be divided by {flag(by)} {size} ({self.name})"
                )
