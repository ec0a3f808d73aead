"""Layers of multi-token prediction behind the decoder: megatron-core's, fed with what is known.

Layer k (from 1) sees at position t the decoder's hidden state there and the embedding of token
t + k, and predicts token t + k + 1 (DeepSeek-V3, https://arxiv.org/abs/2412.19437, section 2.2,
equations 21 to 23). The decoder's hidden states, embedding and output weights are detached: the
layers learn what the policy does, and the policy is not changed by it.

megatron-core shifts the tokens itself, sequence by sequence, in messages between context-parallel
ranks, and joins its loss to the decoder's gradient. Here tokens come shifted with the micro-batch,
and the loss is taken by `passes`, block by block as that of the policy. Without shifted tokens, as
in a pass that computes no gradient, the layers are passed over.
"""

from collections.abc import Sequence
from typing import Any

import torch
from megatron.core import tensor_parallel
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.multi_token_prediction import (
    MultiTokenPredictionBlockSubmodules,
    MultiTokenPredictionLayer,
    MultiTokenPredictionLayerSubmodules,
)
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.utils import unwrap_model
from torch import Tensor

from agentrl.learner.megatron.norms import RMSNorm

__all__ = ["MTP", "PredictingModel", "mtp_block", "num_mtp_layers"]

#: What the names of the layers' tensors begin with.
MTP = "mtp."


class _Layer(MultiTokenPredictionLayer):  # type: ignore[misc]
    def _get_embeddings(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        embedding: Any,
        hidden_states: Tensor,
        packed_seq_params: Any = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The embedding of tokens that are shifted already."""
        with torch.no_grad():
            embedded = embedding(input_ids=input_ids, position_ids=position_ids)
        return input_ids, position_ids, embedded, hidden_states

    def _checkpointed_forward(
        self, forward_func: Any, *, hidden_states: Tensor, decoder_input: Tensor, **rest: Any
    ) -> Tensor:
        """Computed again in the backward pass. megatron-core's hands everything to torch as one
        tensor after the other, which packed sequences are not."""

        def forward(hidden: Tensor, embedded: Tensor) -> Any:
            return forward_func(hidden_states=hidden, decoder_input=embedded, **rest)

        distributed = self.config.distribute_saved_activations
        again: Tensor = tensor_parallel.checkpoint(
            forward, distributed, hidden_states, decoder_input
        )
        return again


class PredictingModel(GPTModel):  # type: ignore[misc]
    """A stage of the pipeline; the last one has the layers. With `ahead`, the tokens of each
    layer, it returns [1 + layers, L, H]: what the policy's output weights are for, then what each
    layer's are."""

    def forward(self, *args: Any, ahead: Sequence[Tensor] = (), **named: Any) -> Any:
        """As megatron-core's; `ahead`: [1, L] for each layer, the tokens so many further."""
        self._ahead = ahead
        return super().forward(*args, **named)

    def _postprocess(
        self,
        *,
        hidden_states: Tensor,
        position_ids: Tensor,
        rotary_pos_emb: Tensor | None,
        packed_seq_params: Any,
        **_: Any,
    ) -> Tensor:
        if not self.post_process:
            return hidden_states
        states = [hidden_states]
        state = hidden_states.detach().requires_grad_()
        for layer, tokens in zip(self.mtp.layers, self._ahead, strict=False):
            state, _, _ = layer(
                input_ids=tokens,
                position_ids=position_ids,
                hidden_states=state,
                attention_mask=None,
                rotary_pos_emb=rotary_pos_emb,
                packed_seq_params=packed_seq_params,
                embedding=self.embedding,
            )
            states.append(state)
        tied = self.share_embeddings_and_output_weights
        weight = self.shared_embedding_or_output_weight() if tied else None
        whole = [self.output_layer(each, weight=weight)[0].transpose(0, 1) for each in states]
        return torch.cat(whole).contiguous()


def mtp_block(layer: Any, number: int) -> Any:
    """megatron-core's spec of so many layers, each with one that `layer` is the spec of."""
    parts = MultiTokenPredictionLayerSubmodules(
        enorm=RMSNorm,
        hnorm=RMSNorm,
        eh_proj=tensor_parallel.ColumnParallelLinear,
        transformer_layer=layer,
        layer_norm=RMSNorm,
    )
    one = ModuleSpec(module=_Layer, submodules=parts)
    return MultiTokenPredictionBlockSubmodules(layer_specs=[one] * number)


def num_mtp_layers(stage: Any) -> int:
    """How many such layers the model of a stage has, on whatever stage they are."""
    return unwrap_model(stage).config.mtp_num_layers or 0
