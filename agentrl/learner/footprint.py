"""What a step takes of one rank of the learner, as plain data, and whether a GPU has it.

Sizes are bytes of tensors. What a GPU holds besides (CUDA's context, NCCL's buffers, the working
memory of kernels, gaps between tensors) is not among them: `reserve` is kept free for it.
"""

import math
from collections.abc import Iterator

import msgspec

from agentrl.config.megatron import MegatronSettings

__all__ = ["Collective", "Footprint", "Room", "advice", "tokens_that_fit"]

#: Of --max-tokens-per-gpu, in what is proposed.
_STEP = 256


class Collective(msgspec.Struct, frozen=True):
    """Calls of one kind among the ranks of one group. `num_bytes`: of the whole tensors, of all
    calls together."""

    kind: str
    group: str
    ranks: int
    calls: int
    num_bytes: int

    @property
    def sent(self) -> int:
        """What one rank sends, and receives, where a ring does it."""
        others = (self.ranks - 1) / self.ranks
        share = {"allreduce": 2 * others, "send": 1.0, "broadcast": 1.0}.get(self.kind, others)
        return math.ceil(self.num_bytes * share)


class Footprint(msgspec.Struct, frozen=True):
    """One rank. `moment`: in which part of a step most is alive. `beside`: models that are not
    trained. `activations`: and all that is alive for a moment. `logits`: and their gradient."""

    rank: int
    stage: int
    num_parameters: int
    moment: str
    weights: int
    gradients: int
    optimizer: int
    beside: int
    activations: int
    logits: int
    collectives: tuple[Collective, ...] = ()

    @property
    def peak(self) -> int:
        """Most bytes that are alive at once."""
        return self.kept + self.activations + self.logits

    @property
    def kept(self) -> int:
        """What is alive all the time."""
        return self.weights + self.gradients + self.optimizer + self.beside


class Room(msgspec.Struct, frozen=True):
    """Bytes of a GPU. `reserve`: what is kept free of it."""

    total: int
    reserve: int

    def left(self, peak: int) -> int:
        """What is left beside `peak`; negative: what lacks."""
        return self.total - self.reserve - peak


def tokens_that_fit(rank: Footprint, room: Room, tokens: int) -> int:
    """About how many tokens a micro-batch may have on a GPU, of which it has `tokens`: what a step
    needs for a moment grows with them."""
    if rank.moment != "pass":
        return tokens
    left = room.total - room.reserve - rank.kept
    return max(0, int(tokens * left / max(1, rank.activations + rank.logits))) // _STEP * _STEP


def advice(rank: Footprint, room: Room, settings: MegatronSettings, tokens: int, dp: int) -> str:
    """What to change so that `rank` fits, in a sentence: the first way whose estimate is enough, or
    the ways together that save most."""
    lacks = -room.left(rank.peak)
    ways = list(_ways(rank, room, settings, tokens, dp))
    for saved, way in ways:
        if saved >= lacks:
            return f"give {way}"
    together = " and ".join(way for saved, way in ways if saved > lacks / 10)
    if sum(saved for saved, _ in ways) >= lacks:
        return f"give {together}"
    more = f"more ranks of {_larger('tensor_model_parallel_size', settings)}, or of "
    more += _larger("pipeline_model_parallel_size", settings)
    return f"give {together}, and {more}" if together else f"give {more}"


def _larger(name: str, settings: MegatronSettings) -> str:
    return f"--{name.replace('_', '-')} (now {getattr(settings, name)})"


def _ways(
    rank: Footprint, room: Room, settings: MegatronSettings, tokens: int, dp: int
) -> Iterator[tuple[float, str]]:
    """Flags with about what each saves at the peak, those that cost nothing first."""
    tensor = settings.tensor_model_parallel_size
    moment = rank.activations + rank.logits
    if dp > 1 and not settings.use_distributed_optimizer:
        yield rank.optimizer * (1 - 1 / dp), "--use-distributed-optimizer"
    if tensor > 1 and not settings.sequence_parallel:
        yield rank.activations * (1 - 1 / tensor) / 2, "--sequence-parallel"
    if rank.moment == "pass" and settings.recompute_granularity != "full":
        yield (
            rank.activations * 0.75,
            "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
        )
    if (fewer := tokens_that_fit(rank, room, tokens)) and fewer < tokens:
        yield moment * (1 - fewer / tokens), f"--max-tokens-per-gpu {fewer} (or less)"
    if not settings.optimizer_cpu_offload:
        yield float(rank.optimizer), "--optimizer-cpu-offload --use-precision-aware-optimizer"
