"""The Megatron backend: one rank's weights, optimizer and collectives behind `TrainBackend`.

    OPEN (constructed: groups joined, weights loaded) -> CLOSED (`close`)

Train in the thread that constructed it (see `compat`). The gradient of a step is the plain sum of
the losses' gradients over ranks and micro-batches; nothing is averaged here.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from agentrl.algorithms.rows import LossFn, MicroBatch
from agentrl.columns import Column
from agentrl.config.fields import places_of_weights
from agentrl.config.first_weights import (
    brings_optimizer,
    holds_megatron,
    holds_model,
    passengers_of,
    wants_megatrons_optimizer,
)
from agentrl.config.megatron import MegatronSettings
from agentrl.config.rates import policys_steps, with_critics_rate
from agentrl.config.run import RunConfig
from agentrl.config.stages import stages_of_a_rank
from agentrl.config.torch_dist import Header, folder_of, read_header, state_in
from agentrl.errors import ConfigError
from agentrl.learner.backend import StepResult
from agentrl.learner.checkpoints import iterations
from agentrl.learner.collective_errors import by_source
from agentrl.learner.finding import newest_of_all
from agentrl.learner.hooks import BEFORE_LOG_PROB, BEFORE_TRAIN_STEP, INIT, LearnerHooks
from agentrl.learner.manifest import FileFacts
from agentrl.learner.megatron import compat, foreign, hf_weights, parallel, state
from agentrl.learner.megatron.freezing import freeze
from agentrl.learner.megatron.gpu_kernels import use_flash_attention
from agentrl.learner.megatron.laid_out import TokenLayout
from agentrl.learner.megatron.lent_memory import LentMemory, weight_tensors
from agentrl.learner.megatron.model import build_model, parameter_dtype, transformer_config
from agentrl.learner.megatron.mtp import MTP
from agentrl.learner.megatron.near_processors import run_near
from agentrl.learner.megatron.optimizer import Optimizer
from agentrl.learner.megatron.passes import forward_pass
from agentrl.learner.megatron.process import keep_freed_memory, set_deterministic
from agentrl.learner.megatron.trained import TrainedModel
from agentrl.learner.megatron.value_head import HEAD
from agentrl.learner.megatron.weights import Weights
from agentrl.learner.resume import root_of
from agentrl.models.headers import check_header, without_mtp
from agentrl.models.mtp import with_mtp
from agentrl.models.registry import Model, open_model
from agentrl.models.routes import Routes, routes_of

__all__ = ["MegatronBackend"]

log = logging.getLogger(__name__)


#: What slime calls the log-probabilities of a model by.
_PREFIXES = {"policy": "", "reference": "ref_", "teacher": "teacher_"}


class _Built(NamedTuple):
    """A model with its weights, megatron-core's configuration of it, and its weights by name."""

    model: Any
    config: Any
    weights: Weights


class MegatronBackend:
    """`TrainBackend` on megatron-core, on CPUs (gloo) and GPUs (NCCL) alike. `models`: those
    beside the policy, by name (`Needs.models`), of the weights of `--ref-load`,
    `--opd-teacher-load` and `--critic-load`. `hooks`: the user's functions, as the loop that trains
    with it has them.

    Raises ConfigError when `model_dir` or the Megatron settings cannot run, before any group
    exists, and EnvironmentSetupError when the other ranks do not come.
    """

    def __init__(
        self,
        cfg: RunConfig,
        model_dir: Path,
        *,
        rank: int,
        world_size: int,
        master_address: str,
        master_port: int,
        num_training_steps: int | None,
        models: Collection[str] = (),
        hooks: LearnerHooks | None = None,
    ) -> None:
        compat.install()
        self._hooks = LearnerHooks(cfg) if hooks is None else hooks
        self._settings = MegatronSettings.from_config(cfg)
        self._lends = cfg.offload_train
        self._pushes_draft = cfg.pushes_draft
        self._lent = LentMemory()
        if world_size != cfg.num_learner_ranks:
            raise ConfigError(
                f"the learner was started with {world_size} ranks, "
                f"the run is configured for {cfg.num_learner_ranks}"
            )
        self._described = open_model(model_dir, cfg.model_family)
        self._policy = with_mtp(self._described) if cfg.enable_mtp_training else self._described
        self._routes = (
            routes_of(self._described.architecture) if cfg.replays_engine_routes else None
        )
        self.columns: tuple[Column, ...] = () if self._routes is None else (self._routes.column,)
        self._policy.architecture.check(self._settings)
        self._model_dir = model_dir
        set_deterministic(self._settings.deterministic_mode)
        parallel.open_groups(
            self._settings,
            rank=rank,
            world_size=world_size,
            address=master_address,
            port=master_port,
            seed=cfg.seed,
            stages_of_a_rank=stages_of_a_rank(
                self._described.architecture.num_layers, self._settings
            ),
        )
        self.data_parallel_rank: int = parallel_state.get_data_parallel_rank()
        self.data_parallel_size: int = parallel_state.get_data_parallel_world_size()
        self.is_source = rank == 0
        self.collective_timeout_s = 60.0 * self._settings.distributed_timeout_minutes
        self.replica = parallel.open_replica(
            timedelta(minutes=self._settings.distributed_timeout_minutes)
        )
        device = parallel.device_of_rank(rank)
        if device.type == "cpu":
            keep_freed_memory()
        else:
            use_flash_attention(cfg.flash_attention)
        run_near(device)
        try:
            self._hooks.call(INIT, self.all_gather)
            self._build(cfg, device, num_training_steps, models)
        except BaseException:
            self.close()
            raise

    def _build(
        self,
        cfg: RunConfig,
        device: torch.device,
        total_steps: int | None,
        models: Collection[str],
    ) -> None:
        vocab_size = self._described.architecture.vocab_size
        layout = TokenLayout.of_rank(cfg, self._settings, vocab_size, device)
        self._layout = replace(layout, routes=self._routes, is_exact=cfg.computes_exactly)
        is_restored = cfg.is_continued and bool(iterations(root_of(cfg)))
        first = None if is_restored or brings_optimizer(cfg) else cfg.load
        self._passengers_dir = passengers_of(cfg, self._model_dir)
        built = {"policy": self._loaded_model("policy", device, first)}
        for name in sorted(models):  # collective: in one order on all ranks
            place = getattr(cfg, places_of_weights()[name].name)
            if name == "critic":  # of a run that goes on, its checkpoint brings the critic
                place = None if is_restored else place or cfg.load
            built[name] = self._loaded_model(name, device, place)
        self._weights = built["policy"].weights
        steps = policys_steps(cfg, total_steps)
        whose = f"a {self._described.architecture.name}"
        counts = freeze(built["policy"].model, cfg, self._settings, whose)
        self._trained = {"policy": self._to_train(built["policy"], cfg, steps, self._routes)}
        if "critic" in built:
            freeze(built["critic"].model, cfg, self._settings, f"the critic of {whose}")
            rated = with_critics_rate(cfg)
            self._trained["critic"] = self._to_train(built["critic"], rated, total_steps, None)
        self._frozen = {
            name: one.model.eval().requires_grad_(False)
            for name, one in built.items()
            if name not in self._trained
        }
        self._renewed = {
            name: self._frozen[name]
            for name in self._frozen.keys() & {"reference"}
            if cfg.ref_update_interval is not None
        }
        has_own_critic = "critic" in self._trained and cfg.critic_load is not None
        self._kept = {"critic"} if has_own_critic else set()
        if first is not None and wants_megatrons_optimizer(cfg):
            self._take_optimizer(folder_of(Path(first)))
        log.info(
            "rank %d: %s with %d parameters here on %s; of %d on all ranks, %d are trained",
            dist.get_rank(),
            self._described.architecture.name,
            sum(parameter.numel() for parameter in self._trained["policy"].module.parameters()),
            device,
            counts.whole,
            counts.trained,
        )

    def _to_train(
        self, built: _Built, cfg: RunConfig, total_steps: int | None, routes: Routes | None
    ) -> TrainedModel:
        return TrainedModel(
            cfg, self._settings, built.model, built.config, self._layout, total_steps, routes
        )

    def _loaded_model(self, name: str, device: torch.device, place: str | None) -> _Built:
        """The model of that name with the weights at `place`: a Hugging Face model, checkpoints of
        ours or of Megatron's; None: those of the model's own directory. A critic takes those of a
        policy but for the output weights, or of our checkpoints the critic's. The policy alone has
        the layers of multi-token prediction that are trained."""
        described = self._policy if name == "policy" else self._described
        architecture = described.architecture
        config = transformer_config(architecture, self._settings)
        is_critic = name == "critic"
        cpu, is_exact = torch.device("cpu"), self._layout.is_exact and not is_critic
        model = build_model(architecture, config, cpu, is_critic=is_critic, is_exact=is_exact)
        without = HEAD if is_critic else ""
        weights = Weights(model, described, without=without)
        if place is None or holds_model(place):
            directory = self._model_dir if place is None else Path(place)
            rules = described.is_passenger, described.family.stacks
            with hf_weights.StoredTensors(directory, weights.shapes, *rules) as tensors:
                weights.load(tensors)
        elif holds_megatron(place):
            folder = folder_of(Path(place))
            header = by_source(self, lambda: _header(folder, described), Header)
            foreign.load_weights(folder, header.tensors, model, described, without)
        else:
            found = newest_of_all(Path(place), self)
            if found is None:
                raise ConfigError(f"there is no checkpoint at {place}")
            state.load_weights(found.state, model, name if is_critic else "policy", without)
        return _Built(model.to(device), config, weights)

    def _take_optimizer(self, folder: Path) -> None:
        def read() -> Header:
            header = read_header(folder)
            state_in(folder, header)
            return header

        header = by_source(self, read, Header)
        policy = self._trained["policy"]
        foreign.load_optimizer(folder, header, policy.module, policy.optimizer, self._policy)

    def run(self, model: str, micro_batches: Sequence[MicroBatch]) -> list[Tensor]:
        """See `TrainBackend.run`. ValueError for a model that was not asked for."""
        if model in self._trained:
            trained = self._trained[model]
            self._before_log_prob(model, trained.chunks)
            return trained.run(micro_batches)
        if model not in self._frozen:
            there = ", ".join([*self._trained, *self._frozen])
            raise ValueError(f"there is no {model} model here, only {there}")
        self._before_log_prob(model, lambda: [*self._frozen[model]])
        return forward_pass(self._frozen[model], micro_batches, self._layout)

    def step(
        self,
        model: str,
        micro_batches: Sequence[MicroBatch],
        loss_fn: LossFn,
        lr_scale: float = 1.0,
    ) -> StepResult:
        """See `TrainBackend.step`. ValueError for a model that is not trained."""
        if model not in self._trained:
            trained = ", ".join(self._trained)
            raise ValueError(f"the model {model} is not trained here, only {trained}")
        return self._trained[model].step(micro_batches, loss_fn, lr_scale, self._before_step)

    @torch.no_grad()
    def _before_log_prob(self, model: str, chunks: Callable[[], list[Any]]) -> None:
        if model in _PREFIXES and BEFORE_LOG_PROB in self._hooks:
            self._hooks.call(BEFORE_LOG_PROB, self.all_gather, chunks(), _PREFIXES[model])

    def _before_step(self, trained: TrainedModel) -> None:
        if BEFORE_TRAIN_STEP in self._hooks:
            at = (self._hooks.iteration, self._hooks.step)
            parts = (trained.chunks(), trained.optimizer.of_megatron, trained.optimizer.scheduler)
            self._hooks.call(BEFORE_TRAIN_STEP, self.all_gather, *at, *parts)

    def renew(self, model: str) -> None:
        """See `TrainBackend.renew`."""
        theirs = self._trained["policy"].module.state_dict()
        frozen = self._frozen[model]
        frozen.load_state_dict({name: theirs[name] for name in frozen.state_dict()})

    def hf_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """See `TrainBackend.hf_tensors`; layers of multi-token prediction, where engines draft with
        them."""
        return self._exported(None if self._pushes_draft else MTP)

    def _exported(self, without: str | None = None) -> Iterator[tuple[str, Tensor]]:
        self._trained["policy"].finish_gathering()
        return self._weights.export(without=without)

    def lay_down(self, *, weights: bool) -> None:
        """See `LearnerMemory`. Nothing on the CPU, nor under --no-offload-train."""
        if not self._lends:
            return
        trained = self._trained.values()
        for one in trained:
            one.finish_gathering()
        of_weights = [tensor for one in trained for tensor in weight_tensors(one.wrapped)]
        of_weights += [t for stages in self._frozen.values() for t in weight_tensors(stages)]
        held = {tensor.untyped_storage()._cdata for tensor in of_weights}
        kept, dropped = of_weights if weights else [], list[Tensor]()
        for one in trained:
            beside, gradients = one.beside_weights()
            kept += [t for t in beside if t.untyped_storage()._cdata not in held]
            dropped += gradients
        self._lent.lay_down(kept, dropped)

    def take_up(self) -> None:
        """See `LearnerMemory`."""
        self._lent.take_up()

    def save_hf(self, directory: Path) -> None:
        """See `TrainBackend.save_hf`; the source rank writes."""
        if self.is_source:
            dtype = parameter_dtype(self._settings)
            tensors = chain(self._exported(), self._passengers())
            hf_weights.write_checkpoint(directory, tensors, self._model_dir, dtype)
        else:
            for _ in self._exported():
                pass
        dist.barrier()

    def _passengers(self) -> Iterator[tuple[str, Tensor]]:
        """Most families have none."""
        if self._policy.family.is_passenger is None:
            return iter(())
        return hf_weights.passengers(self._passengers_dir, self._policy)

    def save_state(self, directory: Path) -> Mapping[str, FileFacts]:
        """See `TrainBackend.save_state`."""
        return state.save(directory, self._trained, self._renewed)

    def copy_state(self) -> state.HostCopy:
        """See `agentrl.learner.checkpointing.CopiesState`."""
        return state.HostCopy(self._trained, self._renewed)

    def load_state(self, directory: Path) -> None:
        """See `TrainBackend.load_state`."""
        state.load(directory, self._trained, self._renewed, self._kept)

    def broadcast_bytes(self, data: bytes | None) -> bytes:
        """See `TrainBackend.broadcast_bytes`."""
        return parallel.broadcast_bytes(data)

    def all_reduce_sum(self, values: Sequence[float]) -> list[float]:
        """See `TrainBackend.all_reduce_sum`."""
        return parallel.all_reduce_sum(values)

    def all_gather(self, value: Any) -> list[Any]:
        """See `TrainBackend.all_gather`."""
        return parallel.all_gather_msgpack(value)

    def close(self) -> None:
        """Leave the process groups, and let go of the models; again does nothing."""
        for model in self.__dict__.get("_trained", {}).values():
            for stage in model.wrapped:
                # Its gradient hooks hold the stage, and torch's graph holds the hooks, where the
                # garbage collector does not see them.
                vars(stage).clear()
        for name in ("_trained", "_frozen", "_renewed", "_weights"):
            self.__dict__.pop(name, None)
        parallel.close_groups()

    @property
    def _model(self) -> Any:
        """The policy's stages, each in megatron-core's DDP."""
        return self._trained["policy"].wrapped

    @property
    def _optimizer(self) -> Optimizer:
        return self._trained["policy"].optimizer


def _header(folder: Path, described: Model) -> Header:
    """Of a checkpoint of Megatron's with the weights of that model."""
    header = read_header(folder)
    if not described.architecture.mtp_num_layers:
        header = without_mtp(header)
    check_header(folder, header, described)
    return header
