"""A micro-batch as the model of a rank takes it.

It is on the device, padded where parallelism needs equal shares, and cut for context parallelism.
Padding is never seen by a real token: it lies behind a sequence (causal attention) or is a sequence
of its own.

T = packed tokens of the loop's micro-batch, P = with padding, L = of them on this rank, R = scored.
"""

from dataclasses import dataclass, replace

import torch
from megatron.core import parallel_state
from torch import Tensor

from agentrl.algorithms.rows import TEMPERATURES, MicroBatch
from agentrl.config.megatron import MegatronSettings
from agentrl.config.run import RunConfig
from agentrl.learner.megatron.mtp_targets import MtpTargets, mtp_targets
from agentrl.learner.megatron.padding import PackedTokens
from agentrl.learner.megatron.replay import FREE
from agentrl.learner.megatron.zigzag import gathered_order, local_positions
from agentrl.models.routes import Routes

__all__ = ["LaidOut", "TokenLayout", "lay_out", "num_padded"]


@dataclass(frozen=True, slots=True)
class TokenLayout:
    """How this rank's model wants its tokens: a context-parallel size and rank, and the number
    that local tokens must be a multiple of (tensor-parallel size under sequence parallelism).

    `temperature` divides the logits: the engine reports log-probabilities of the distribution that
    it sampled from, and so must the learner. Tokens of a mixture may each bring their own, as
    column `temperatures`. `vocab_size` counts no padding. `routes`: which column
    brings the engine's choice of experts. `equal_shares`: whether ranks that share experts must
    have equally many tokens in a micro-batch. `is_exact`: log-probabilities are the engine's bit
    for bit (`--true-on-policy-mode`)."""

    device: torch.device
    context_size: int
    context_rank: int
    multiple: int
    temperature: float
    vocab_size: int
    routes: Routes | None = None
    equal_shares: bool = False
    is_exact: bool = False

    @classmethod
    def of_rank(
        cls, cfg: RunConfig, settings: MegatronSettings, vocab_size: int, device: torch.device
    ) -> "TokenLayout":
        """That of this rank, whose groups are joined: with the usual sums, and no experts told."""
        return cls(
            device=device,
            context_size=settings.context_parallel_size,
            context_rank=parallel_state.get_context_parallel_rank(),
            multiple=settings.tensor_model_parallel_size if settings.uses_sequence_parallel else 1,
            temperature=cfg.scoring_temperature,
            vocab_size=vocab_size,
            equal_shares=settings.gathers_tokens,
        )


@dataclass(frozen=True, slots=True)
class LaidOut:
    """A micro-batch as the model takes it. `order_T` finds the loop's tokens in what all
    context-parallel ranks return, one after the other; None when they are already the same.
    `rows_R`: positions whose label is scored; None: all. `routes_L`: the experts of the tokens
    that this rank's routers see, [L, layers, experts of a token]; None: nobody told any.
    `temperature_L`: what logits are divided by, for each token where these differ. `ahead`:
    what layers of multi-token prediction see and are asked for, as this rank has it."""

    source: MicroBatch
    tokens_1L: Tensor
    labels_L: Tensor
    positions_1L: Tensor
    rows_R: Tensor | None
    packed: PackedTokens
    order_T: Tensor | None
    routes_L: Tensor | None
    temperature_L: Tensor | float
    ahead: list["_Ahead"]


@dataclass(frozen=True, slots=True)
class _Ahead:
    """For one layer of multi-token prediction: tokens and labels of this rank, and the rows of
    which the label is asked for. `whole`: the same of the loop's T tokens."""

    tokens_1L: Tensor
    labels_L: Tensor
    rows_R: Tensor
    whole: MtpTargets


def num_padded(batch: MicroBatch, layout: TokenLayout) -> int:
    """P, of all context-parallel ranks."""
    return sum(_pad(_lengths(batch), layout)[0])


def lay_out(batch: MicroBatch, layout: TokenLayout, mtp_layers: int = 0, least: int = 0) -> LaidOut:
    """A micro-batch as this rank's model takes it, padded to `least` tokens of all
    context-parallel ranks or more."""
    device = layout.device
    source = replace(
        batch, columns={name: column.to(device) for name, column in batch.columns.items()}
    )
    lengths = _lengths(batch)
    padded, place_T = _pad(lengths, layout, least)
    order_T: Tensor | None = None
    local: Tensor | slice = slice(None)
    if layout.context_size > 1:
        local = local_positions(padded, layout.context_size, layout.context_rank)
        order_T = gathered_order(padded, layout.context_size)[place_T].to(device)
    elif padded != lengths:
        order_T = place_T.to(device)

    def fill(column_T: Tensor, filler: int = 0) -> Tensor:
        if padded == lengths:
            return column_T[local].to(device)
        column_P = column_T.new_full((sum(padded), *column_T.shape[1:]), filler)
        column_P[place_T] = column_T
        return column_P[local].to(device)

    ends = torch.tensor([0, *padded]).cumsum(0).to(device, torch.int32)
    is_real_L = fill(torch.full_like(batch.tokens_T, bool(batch.columns), dtype=torch.bool))
    packed = PackedTokens(
        padding_1L=~_seen_by_routers(is_real_L, layout)[None],
        qkv_format="thd",
        cu_seqlens_q=ends,
        cu_seqlens_kv=ends,
        max_seqlen_q=max(padded),
        max_seqlen_kv=max(padded),
    )
    tokens_L, labels_L, positions_L = map(fill, (batch.tokens_T, batch.labels_T, batch.positions_T))
    rows_R = None
    if "scored" in batch.columns:
        rows_R = fill(batch.columns["scored"]).nonzero()[:, 0]
    routes_L = None
    if layout.routes is not None and (column := layout.routes.column).name in batch.columns:
        known = batch.columns[column.name].long()
        known[known == column.fill] = FREE
        routes_L = _seen_by_routers(fill(known, FREE), layout)
    temperature_L: Tensor | float = layout.temperature
    if TEMPERATURES in batch.columns:
        temperature_L = fill(batch.columns[TEMPERATURES], 1)
    ahead = [
        _Ahead(
            tokens_1L=fill(each.tokens_T)[None],
            labels_L=fill(each.labels_T),
            rows_R=fill(each.asked_T).nonzero()[:, 0],
            whole=replace(
                each, asked_T=each.asked_T.to(device), weights_T=each.weights_T.to(device)
            ),
        )
        for each in mtp_targets(batch, mtp_layers)
    ]
    return LaidOut(
        source,
        tokens_L[None],
        labels_L,
        positions_L[None],
        rows_R,
        packed,
        order_T,
        routes_L,
        temperature_L,
        ahead,
    )


def _lengths(batch: MicroBatch) -> list[int]:
    return [int(n) for n in batch.cu_seqlens.diff().tolist()]


def _seen_by_routers(column_L: Tensor, layout: TokenLayout) -> Tensor:
    """Under sequence parallelism each tensor-parallel rank routes its share of the tokens."""
    if layout.multiple == 1:
        return column_L
    rank: int = parallel_state.get_tensor_model_parallel_rank()
    return column_L.chunk(layout.multiple)[rank]


def _pad(lengths: list[int], layout: TokenLayout, least: int = 0) -> tuple[list[int], Tensor]:
    """Lengths that every rank can share equally, of `least` tokens together or more, and where the
    T tokens lie among the P."""
    unit = 2 * layout.context_size if layout.context_size > 1 else 1
    padded = [length + -length % unit for length in lengths]
    starts = torch.tensor([0, *padded[:-1]]).cumsum(0)
    place_T = torch.cat([start + torch.arange(n) for start, n in zip(starts, lengths, strict=True)])
    whole = max(unit, layout.multiple * layout.context_size)
    while whole % unit:
        whole += layout.multiple * layout.context_size
    total = max(sum(padded), least)
    filler = total + -total % whole - sum(padded)
    return [*padded, filler] if filler else padded, place_T
