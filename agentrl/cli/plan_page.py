"""The page of `agentrl plan`: from footprints to a table and a verdict."""

import math
from collections.abc import Iterator
from pathlib import Path

import msgspec

from agentrl.config.engine_groups import EngineGroup, attention_ranks
from agentrl.config.engine_memory import EngineRoom, engine_room, push_bytes
from agentrl.config.engine_settings import way_of
from agentrl.config.freezing import freezes
from agentrl.config.learner_memory import checkpoint_bytes
from agentrl.config.lengths import notes_on_lengths
from agentrl.config.megatron import MegatronSettings
from agentrl.config.model import read_model
from agentrl.config.plan import in_units
from agentrl.config.run import RunConfig
from agentrl.learner.footprint import Footprint, Room, advice, tokens_that_fit
from agentrl.models.latent import Latent
from agentrl.models.registry import Model
from agentrl.models.shapes import shapes_of

__all__ = ["Planned", "page"]

_COLUMNS = ("weights", "gradients", "optimizer", "beside", "activations", "logits", "peak")
_GIB = 1024**3


class Planned(msgspec.Struct, frozen=True):
    """What the page is about. `ranks`: a footprint for each kind, first stage to last. `models`:
    those that the algorithm needs beside the policy."""

    config: RunConfig
    model: Model
    ranks: tuple[Footprint, ...]
    gpu_gib: float
    reserve_gib: float
    link_gbps: float
    moe_imbalance: float = 1.0
    models: frozenset[str] = frozenset()

    @property
    def room(self) -> Room:
        """Of a GPU for tensors."""
        return Room(int(self.gpu_gib * _GIB), int(self.reserve_gib * _GIB))

    @property
    def settings(self) -> MegatronSettings:
        """The learner's, of Megatron."""
        return MegatronSettings.from_config(self.config)

    @property
    def fullest(self) -> Footprint:
        """The rank that has least left."""
        return max(self.ranks, key=lambda rank: rank.peak)

    @property
    def engine(self) -> EngineRoom | None:
        """The room of the engine that holds fewest tokens, if the run starts any."""
        rooms = [room for _, room in self.engines]
        return min(rooms, key=lambda room: room.kv_tokens, default=None)

    @property
    def engines(self) -> list[tuple[EngineGroup, EngineRoom]]:
        """The groups of engines that the run starts, and the room of an engine of each."""
        total, found = self.room.total, []
        for group in self.config.engine_groups if self.config.started_engines else []:
            if group.num_engines:
                way = way_of(self.config, group)
                values = self._kv_values(way)
                found.append((group, engine_room(way, self.num_parameters, values, total)))
        return found

    @property
    def kv_values(self) -> int:
        """As `_kv_values`, of an engine that is as the flags say."""
        return self._kv_values(self.config)

    def _kv_values(self, way: RunConfig) -> int:
        """Numbers that an engine's GPU keeps of a token: of latent attention the latent and the
        rotated part, on each; else keys and values, of which a GPU has a head at the least. Under
        data-parallel attention a token lies on the GPUs of one group alone."""
        architecture = self.model.architecture
        net = getattr(architecture, "delta_net", None)
        layers = range(architecture.num_layers)
        attending: int = sum(net is None or net.has_attention(index) for index in layers)
        if isinstance(architecture, Latent):
            return attending * (architecture.kv_lora_rank + architecture.qk_pos_emb_head_dim)
        groups = attention_ranks(way.sglang)
        ranks = max(1, way.rollout_num_gpus_per_engine // groups)
        heads = max(1, architecture.num_query_groups // ranks)
        return 2 * attending * heads * architecture.kv_channels

    @property
    def num_parameters(self) -> int:
        """Of the whole model."""
        return sum(math.prod(shape) for shape in shapes_of(self.model).values())

    @property
    def fits(self) -> bool:
        """Whether every rank and every engine has the memory that it needs."""
        engine = self.engine
        has_room = engine is None or engine.kv_tokens > 0
        return has_room and self.room.left(self.fullest.peak) >= 0


def page(planned: Planned) -> Iterator[str]:
    """Its lines."""
    yield from _head(planned)
    yield ""
    yield from _table(planned)
    yield ""
    yield from _collectives(planned)
    yield ""
    yield from _engines(planned)
    yield from _moved(planned)
    yield ""
    yield from _verdict(planned)
    yield ""
    yield from _estimates(planned)


def _head(planned: Planned) -> Iterator[str]:
    config, settings = planned.config, planned.settings
    architecture = planned.model.architecture
    yield (
        f"model       {architecture.name}, {architecture.num_layers} layers, "
        f"{planned.num_parameters:,} parameters"
    )
    replicas = config.num_learner_ranks // settings.model_parallel_size
    yield (
        f"learner     {config.num_learner_ranks} ranks on {config.device}: "
        f"tensor {settings.tensor_model_parallel_size} x "
        f"pipeline {settings.pipeline_model_parallel_size} x "
        f"context {settings.context_parallel_size}, {replicas} replicas, "
        f"{'bfloat16' if settings.bf16 else 'float32'}"
    )
    yield (
        f"step        micro-batches of {config.micro_batch_tokens} tokens "
        f"({config.max_tokens_per_gpu} on a GPU), every position scored, "
        f"{settings.pipeline_model_parallel_size} under way at once"
    )
    kept = in_units(planned.room.reserve)
    yield f"GPU         {in_units(planned.room.total)}, of which {kept} are kept free"


def _table(planned: Planned) -> Iterator[str]:
    stages = planned.settings.pipeline_model_parallel_size
    has_beside = any(rank.beside for rank in planned.ranks)
    columns = [name for name in _COLUMNS if has_beside or name != "beside"]
    yield _row("rank", *columns, "left")
    for rank in planned.ranks:
        sizes = [in_units(getattr(rank, name)) for name in columns]
        yield _row(f"{_kind(rank, stages)} ({rank.rank})", *sizes, _left(planned, rank))
    most = planned.fullest
    when = "passes of a step" if most.moment == "pass" else "optimizer's part of a step"
    yield f"most is alive in the {when}; activations: and all else that is alive for a moment"


def _left(planned: Planned, rank: Footprint) -> str:
    left = planned.room.left(rank.peak)
    return in_units(left) if left >= 0 else f"-{in_units(-left)}"


def _kind(rank: Footprint, stages: int) -> str:
    if stages == 1:
        return "every rank"
    if rank.stage == 0:
        return "first stage"
    return "last stage" if rank.stage == stages - 1 else f"stage {rank.stage + 1} of {stages}"


def _row(head: str, *cells: str) -> str:
    return f"{head:<16}" + "".join(f"{cell:>13}" for cell in cells)


def _collectives(planned: Planned) -> Iterator[str]:
    most = planned.fullest
    micro_batches = planned.settings.pipeline_model_parallel_size
    counted = f"{micro_batches} micro-batches" if micro_batches > 1 else "1 micro-batch"
    if not most.collectives:
        yield f"collectives of a step: none, rank {most.rank} is alone"
        return
    yield f"collectives of a step of {counted}, rank {most.rank}:"
    for one in most.collectives:
        yield (
            f"  {one.kind:<15}{one.group:<10}{one.ranks:>4} ranks {one.calls:>6} calls "
            f"{in_units(one.num_bytes):>11}, sends {in_units(one.sent):>11} "
            f"in {_time(planned, one.sent)}"
        )


def _time(planned: Planned, num_bytes: int) -> str:
    seconds = num_bytes * 8 / (planned.link_gbps * 1e9)
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"


def _engines(planned: Planned) -> Iterator[str]:
    head = "engines"
    for group, engine in planned.engines:
        share = f"{engine.share:g} of a GPU" + (" (assumed)" if engine.is_assumed else "")
        kind = "" if group.kind == "regular" else f" {group.kind}"
        yield (
            f"{head:12}{group.num_engines}{kind} of {group.size} GPUs, {share} each for weights "
            "and key-value cache"
        )
        head = ""
        yield (
            f"            {in_units(engine.weights)} of weights and {in_units(engine.kv_bytes)} of "
            f"cache on a GPU: {engine.kv_tokens:,} tokens in "
            f"{_holder(way_of(planned.config, group))}"
        )
    if apart := planned.config.eval_engines:
        yield f"{'':12}{len(apart)} of {apart[0].size} GPUs for evaluations (--eval-mode apart)"


def _holder(config: RunConfig) -> str:
    """What tokens of one cache are counted of."""
    groups = attention_ranks(config.sglang)
    return f"each of {groups} attention groups of an engine" if groups > 1 else "an engine"


def _moved(planned: Planned) -> Iterator[str]:
    link = f"at {planned.link_gbps:g} Gbit/s"
    moved = push_bytes(planned.config, planned.num_parameters)
    if planned.config.num_engines:
        yield f"push        {in_units(moved)} through one link, {_time(planned, moved)} {link}"
    kept = checkpoint_bytes(planned.config, planned.num_parameters, planned.models)
    yield f"checkpoint  {in_units(kept)}; through one link {_time(planned, kept)} {link}"


def _verdict(planned: Planned) -> Iterator[str]:
    config, rank, room = planned.config, planned.fullest, planned.room
    left, tokens = room.left(rank.peak), config.max_tokens_per_gpu
    if left >= 0:
        more = tokens_that_fit(rank, room, tokens)
        grows = f"; about {more} tokens a GPU would (--max-tokens-per-gpu)" if more > tokens else ""
        yield f"fits: rank {rank.rank} has {in_units(left)} left{grows}"
    else:
        yield f"does not fit: rank {rank.rank} lacks {in_units(-left)}"
        replicas = config.num_learner_ranks // planned.settings.model_parallel_size
        shards = replicas * config.context_parallel_size
        yield f"to change: {advice(rank, room, planned.settings, tokens, shards)}"
    engine = planned.engine
    if engine is not None and engine.kv_tokens == 0:
        yield (
            "does not fit: engines have no room for a key-value cache; raise "
            f"--rollout-num-gpus-per-engine {config.rollout_num_gpus_per_engine}"
        )


def _load_of_experts(imbalance: float) -> str:
    if imbalance == 1:
        return (
            "each gets the same number of tokens, at every moment; a run's routers give some more, "
            "and the rank of these takes more (--moe-imbalance)"
        )
    return f"those of the planned ranks get {imbalance:g} times an even share of the tokens"


def _estimates(planned: Planned) -> Iterator[str]:
    yield "estimates:"
    yield (
        "  left: --reserve-gib is kept free for what is no tensor (CUDA, NCCL, working memory of "
        "kernels, gaps)"
    )
    yield "  times: bytes over the link alone; collectives as rings, one after the other"
    architecture, engine = planned.model.architecture, planned.engine
    if any(map(architecture.has_experts, range(architecture.num_layers))):
        yield f"  experts: {_load_of_experts(planned.moe_imbalance)}"
    if engine is not None and engine.is_assumed:
        yield (
            "  engines: their share of a GPU, which --sglang-mem-fraction-static gives; working "
            "memory and CUDA graphs come out of the rest"
        )
    if engine is not None and attention_ranks(planned.config.sglang) > 1:
        yield (
            "  engines: tokens are those of one group of data-parallel attention; weights are "
            "counted as shared out among all GPUs of an engine"
        )
    if freezes(planned.config):
        yield (
            "  frozen parameters: counted as trained, so a rank takes at most what is said of "
            "gradients, optimizer and activations"
        )
    if planned.settings.optimizer_cpu_offload and planned.config.device == "cuda":
        yield "  optimizer: its offloaded share is taken off; copies on their way are not counted"
    for note in notes_on_lengths(planned.config, read_model(_place(planned))):
        yield f"  {note}"


def _place(planned: Planned) -> Path:
    return Path(str(planned.config.hf_checkpoint))
