"""One step of one rank, for what it takes: the learner's own models, optimizer and passes, under a
count of live bytes.

`footprint_here` takes it on the groups that are open, of real ranks or of imagined ones: that is
how the one is checked by the other. `rehearse` imagines them. Weights are 0 and not loaded; the
loss is the sum of the log-probabilities of all labels, so every position is scored. A step is as
many micro-batches of `lengths` as the pipeline has under way at once.
"""

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from megatron.core import parallel_state
from msgspec.structs import replace
from torch import Tensor

from agentrl.algorithms.load import load_algorithm
from agentrl.algorithms.rows import LossFn, MicroBatch, Outputs
from agentrl.config.megatron import MegatronSettings
from agentrl.config.run import RunConfig
from agentrl.config.stages import stages_of_a_rank
from agentrl.errors import EnvironmentSetupError
from agentrl.learner.footprint import Footprint
from agentrl.learner.megatron import moments
from agentrl.learner.megatron.forced_routes import Skew, forced_routes, require_skew
from agentrl.learner.megatron.imagined import Traffic, imagined_rank
from agentrl.learner.megatron.laid_out import TokenLayout
from agentrl.learner.megatron.lent_memory import gradient_tensors, weight_tensors
from agentrl.learner.megatron.live_bytes import LiveBytes
from agentrl.learner.megatron.model import Stages, build_model, transformer_config
from agentrl.learner.megatron.passes import backward_pass
from agentrl.learner.megatron.trained import TrainedModel
from agentrl.models.architecture import Architecture

__all__ = ["footprint_here", "lengths_of", "rehearse"]


def lengths_of(tokens: int, longest: int, settings: MegatronSettings) -> list[int]:
    """Sequences of at most `longest` that make up at most `tokens`, of lengths that all ranks of
    a replica can share without padding; at least one."""
    unit = 2 * settings.context_parallel_size * settings.tensor_model_parallel_size
    whole, rest = divmod(tokens // unit, max(1, longest // unit))
    lengths = [max(1, longest // unit) * unit] * whole
    return [*lengths, rest * unit] if rest or not lengths else lengths


def rehearse(
    cfg: RunConfig, architecture: Architecture, rank: int, longest: int, imbalance: float = 1.0
) -> Footprint:
    """What a step takes of `rank` among all ranks of the learner, none of which is there, with full
    micro-batches of episodes of `longest` tokens: on CUDA if `cfg.device` says so. The experts of
    the first expert-parallel rank get `imbalance` times an even share of the tokens. Raises
    ConfigError for settings that cannot be, and EnvironmentSetupError where torch has a GPU."""
    if torch.cuda.is_available():
        raise EnvironmentSetupError(
            "a rehearsal computes nothing, and this torch sees a GPU: set CUDA_VISIBLE_DEVICES="
        )
    settings = MegatronSettings.from_config(cfg)
    skew = Skew(imbalance, settings.expert_model_parallel_size)
    require_skew(skew, architecture)
    lengths = lengths_of(cfg.micro_batch_tokens, longest, settings)
    shares = settings.tensor_model_parallel_size if settings.uses_sequence_parallel else 1
    rows = sum(lengths) // settings.context_parallel_size // shares
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with (
            forced_routes(skew),
            imagined_rank(
                settings,
                rank=rank,
                world_size=cfg.num_learner_ranks,
                stages_of_a_rank=stages_of_a_rank(architecture.num_layers, settings),
                message=(rows, 1, architecture.hidden_size),
                as_cuda=cfg.device == "cuda",
            ) as traffic,
        ):
            return footprint_here(cfg, settings, architecture, lengths, traffic)


def footprint_here(
    cfg: RunConfig,
    settings: MegatronSettings,
    architecture: Architecture,
    lengths: Sequence[int],
    traffic: Traffic | None = None,
) -> Footprint:
    """What a step takes of this rank, in whose groups it takes part."""
    live = LiveBytes(_kind_of(architecture, settings))
    batches = [_micro_batch(lengths) for _ in range(_under_way(architecture, settings))]
    with live:
        made = {"policy": _to_train(cfg, settings, architecture, is_critic=False)}
        needs = load_algorithm(cfg).needs
        models, loss = needs.models, _loss_of_logits if needs.logits else _loss
        if "critic" in models:
            made["critic"] = _to_train(cfg, settings, architecture, is_critic=True)
        beside = [_frozen(settings, architecture) for _ in models - {"critic"}]
        for trained in made.values():
            live.mark(weight_tensors(trained.wrapped), "weights")
            live.mark(gradient_tensors(trained.wrapped), "gradients")
            live.mark(trained.optimizer.memory(), "optimizer")
        live.mark((tensor for model in beside for tensor in weight_tensors(model)), "beside")
        peaks: list[tuple[str, dict[str, int]]] = []
        for trained in made.values():
            layout = _layout(cfg, settings, architecture)
            peaks += _peaks(trained, batches, loss, live, layout)
    offloaded = _offloaded(cfg, settings)
    prints = [_footprint(moment, peak, made["policy"], offloaded) for moment, peak in peaks]
    most = max(prints, key=lambda each: each.peak)
    return replace(most, collectives=() if traffic is None else tuple(traffic.collectives()))


def _peaks(
    trained: TrainedModel,
    batches: list[MicroBatch],
    loss: LossFn,
    live: LiveBytes,
    layout: TokenLayout,
) -> list[tuple[str, dict[str, int]]]:
    """The most that is alive in the passes of a step, and where its gradients are applied."""
    trained.optimizer.zero_grad()
    trained.optimizer.set_rate()
    live.forget_peak()
    backward_pass(trained.wrapped, batches, loss, layout)
    passes = dict(live.peak)
    live.forget_peak()
    trained.optimizer.step(loss_is_finite=True)
    return [("pass", passes), ("step", dict(live.peak))]


def _footprint(
    moment: str, peak: dict[str, int], policy: TrainedModel, offloaded: float
) -> Footprint:
    here = 1 - offloaded if moment == "step" else 1
    return Footprint(
        rank=torch.distributed.get_rank(),
        stage=parallel_state.get_pipeline_model_parallel_rank(),
        num_parameters=sum(weight.numel() for weight in policy.wrapped.parameters()),
        moment=moment,
        weights=peak.get("weights", 0),
        gradients=peak.get("gradients", 0),
        optimizer=int(peak.get("optimizer", 0) * (1 - offloaded)),
        beside=peak.get("beside", 0),
        activations=int(peak.get("activations", 0) * here),
        logits=peak.get("logits", 0),
    )


def _offloaded(cfg: RunConfig, settings: MegatronSettings) -> float:
    """The share of the optimizer that lies on the host; it is rehearsed as if it did not."""
    is_away = cfg.device == "cuda" and settings.optimizer_cpu_offload
    return settings.optimizer_offload_fraction if is_away else 0.0


def _to_train(
    cfg: RunConfig, settings: MegatronSettings, architecture: Architecture, *, is_critic: bool
) -> TrainedModel:
    if is_critic:
        architecture = replace(architecture, mtp_num_layers=None)
    config = transformer_config(architecture, settings)
    model = build_model(architecture, config, torch.device("cpu"), is_critic=is_critic)
    _set_to_zero(model.parameters())
    layout = _layout(cfg, settings, architecture)
    trained = TrainedModel(cfg, settings, model, config, layout, None)
    for adam in moments.adams(trained.optimizer.of_megatron):
        for group in adam.param_groups:
            group["foreach"] = cfg.device == "cuda"  # as torch chooses there
    for _ in trained.optimizer.held():
        pass  # moments are made where they are first asked for
    return trained


def _frozen(settings: MegatronSettings, architecture: Architecture) -> Stages:
    architecture = replace(architecture, mtp_num_layers=None)
    config = transformer_config(architecture, settings)
    model = build_model(architecture, config, torch.device("cpu"))
    _set_to_zero(model.parameters())
    return model.eval().requires_grad_(False)


@torch.no_grad()
def _set_to_zero(tensors: Iterable[Tensor]) -> None:
    for tensor in tensors:
        tensor.zero_()


def _layout(cfg: RunConfig, settings: MegatronSettings, architecture: Architecture) -> TokenLayout:
    return TokenLayout.of_rank(cfg, settings, architecture.vocab_size, torch.device("cpu"))


def _under_way(architecture: Architecture, settings: MegatronSettings) -> int:
    """Micro-batches of a step, enough for a pipeline to be full."""
    stages = settings.pipeline_model_parallel_size
    return stages if stages_of_a_rank(architecture.num_layers, settings) == 1 else 2 * stages


def _micro_batch(lengths: Sequence[int]) -> MicroBatch:
    ids = torch.zeros(sum(lengths), dtype=torch.int64)
    return MicroBatch(
        ids,
        ids,
        torch.cat([torch.arange(length) for length in lengths]),
        torch.tensor([0, *lengths]).cumsum(0).to(torch.int32),
        max(lengths),
        {
            "scored": torch.ones(len(ids), dtype=torch.bool),
            "mask": torch.ones(len(ids), dtype=torch.bool),
            "weights": torch.ones(len(ids)),
        },
    )


def _loss(_: MicroBatch, out: Outputs) -> tuple[Tensor, dict[str, Tensor]]:
    made = out.logprobs_T if out.values_T is None else out.values_T
    return -made.sum(), {}


def _loss_of_logits(batch: MicroBatch, out: Outputs) -> tuple[Tensor, dict[str, Tensor]]:
    """The same from logits, for a loss that reads them; a critic has none."""
    if out.logits is None:
        return _loss(batch, out)
    logits_TV, score = out.logits()
    logprobs_T, _ = score(logits_TV, batch.labels_T.to(logits_TV.device), 1.0)
    return -logprobs_T.sum(), {}


def _kind_of(architecture: Architecture, settings: MegatronSettings) -> Any:
    """What a tensor is, by its shape: one with a column for each word of this rank's vocabulary
    is logits or something made of them."""
    ranks = settings.tensor_model_parallel_size
    share = architecture.padded_vocab_size(settings) // ranks
    widths = {share, architecture.vocab_size - share * (ranks - 1)}
    return lambda tensor: (
        "logits" if tensor.ndim == 2 and tensor.shape[1] in widths else "activations"
    )
