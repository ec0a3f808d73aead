"""The sizes and switches of a decoder, under megatron-core's names."""

import msgspec

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
