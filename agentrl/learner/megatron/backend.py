"""The Megatron backend: one rank's weights, optimizer and collectives behind `TrainBackend`.

    OPEN (constructed: groups joined, weights loaded) -> CLOSED (`close`)

Train in the thread that constructed it (see `compat`). The gradient of a step is the plain sum of
the losses' gradients over ranks and micro-batches; nothing is averaged here.
"""

import logging
import math
from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import finalize_model_grads
from torch import Tensor

from agentrl.algorithms.rows import LossFn, MicroBatch
from agentrl.columns import Column
from agentrl.config.first_weights import (
    brings_optimizer,
    holds_megatron,
    holds_model,
    wants_megatrons_optimizer,
)
from agentrl.config.megatron import MegatronSettings
from agentrl.config.run import RunConfig
from agentrl.config.torch_dist import Header, folder_of, read_header, state_in
from agentrl.errors import ConfigError
from agentrl.learner.agreement import by_source
from agentrl.learner.backend import StepResult
from agentrl.learner.beginning import root_of
from agentrl.learner.checkpoints import Checkpoint, iterations, newest_valid
from agentrl.learner.measures import Measures, joined
from agentrl.learner.megatron import balance, checkpoint, compat, foreign, parallel, state
from agentrl.learner.megatron.determinism import set_deterministic
from agentrl.learner.megatron.host_memory import keep_freed_memory
from agentrl.learner.megatron.model import build_model, parameter_dtype, transformer_config
from agentrl.learner.megatron.optimizer import Optimizer, wrap_model
from agentrl.learner.megatron.passes import Layout, backward_pass, forward_pass
from agentrl.learner.megatron.replay import Replay
from agentrl.learner.megatron.weights import Weights
from agentrl.models.headers import check_header
from agentrl.models.registry import open_model
from agentrl.models.routes import routes_of

__all__ = ["MegatronBackend"]

log = logging.getLogger(__name__)


class MegatronBackend:
    """`TrainBackend` on megatron-core, on CPUs (gloo) and GPUs (NCCL) alike. `models`: those
    beside the policy, by name (`Needs.models`), of the weights of `--ref-load` and
    `--opd-teacher-load`.

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
    ) -> None:
        compat.install()
        self._settings = MegatronSettings.from_config(cfg)
        if world_size != cfg.num_learner_ranks:
            raise ConfigError(
                f"the learner was started with {world_size} ranks, "
                f"the run is configured for {cfg.num_learner_ranks}"
            )
        self._described = open_model(model_dir, cfg.model_family)
        self._routes = (
            routes_of(self._described.architecture) if cfg.replays_engine_routes else None
        )
        self.columns: tuple[Column, ...] = () if self._routes is None else (self._routes.column,)
        self._described.architecture.check(self._settings)
        self._model_dir = model_dir
        self._config = transformer_config(self._described.architecture, self._settings)
        self._config.finalize_model_grads_func = _sum_gradients
        set_deterministic(self._settings.deterministic_mode)
        parallel.open_groups(
            self._settings,
            rank=rank,
            world_size=world_size,
            address=master_address,
            port=master_port,
            seed=cfg.seed,
            stages_of_a_rank=self._config.virtual_pipeline_model_parallel_size or 1,
        )
        self.data_parallel_rank: int = parallel_state.get_data_parallel_rank()
        self.data_parallel_size: int = parallel_state.get_data_parallel_world_size()
        self.is_source = rank == 0
        device = parallel.device_of_rank(rank)
        if device.type == "cpu":
            keep_freed_memory()
        try:
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
        self._layout = Layout(
            device=device,
            context_size=self._settings.context_parallel_size,
            context_rank=parallel_state.get_context_parallel_rank(),
            multiple=(
                self._settings.tensor_model_parallel_size
                if self._settings.uses_sequence_parallel
                else 1
            ),
            temperature=cfg.scoring_temperature,
            vocab_size=self._described.architecture.vocab_size,
            routes=self._routes,
        )
        is_restored = cfg.is_continued and bool(iterations(root_of(cfg)))
        first = None if is_restored or brings_optimizer(cfg) else cfg.load
        places = {"reference": "ref_load", "teacher": "opd_teacher_load"}
        self._first_dir = (
            self._model_dir if first is None or not holds_model(first) else Path(first)
        )
        model, self._weights = self._loaded_model(device, first)
        frozen = {}
        for name in sorted(models):  # collective: in one order on all ranks
            loaded, _ = self._loaded_model(device, getattr(cfg, places[name]))
            frozen[name] = loaded.eval().requires_grad_(False)
        self._model = wrap_model(model, self._config, self._settings)
        self._stages = model
        self._replays = [Replay(stage, self._routes) for stage in model]
        self._models: dict[str, Any] = {"policy": self._model, **frozen}
        self._renewed = {
            name: frozen[name]
            for name in frozen.keys() & {"reference"}
            if cfg.ref_update_interval is not None
        }
        self._optimizer = Optimizer(cfg, self._settings, self._model, total_steps, device)
        if first is not None and wants_megatrons_optimizer(cfg):
            self._take_optimizer(folder_of(Path(first)))
        log.info(
            "rank %d: %s with %d parameters on %s",
            dist.get_rank(),
            self._described.architecture.name,
            sum(parameter.numel() for parameter in model.parameters()),
            device,
        )

    def _loaded_model(self, device: torch.device, place: str | None) -> tuple[Any, Weights]:
        """With the weights at `place`: a Hugging Face model, checkpoints of ours or of Megatron's;
        None: those of the model's own directory."""
        model = build_model(self._described.architecture, self._config, torch.device("cpu"))
        weights = Weights(model, self._described)
        if place is None or holds_model(place):
            directory = self._model_dir if place is None else Path(place)
            rules = self._described.is_passenger, self._described.family.stacks
            with checkpoint.Checkpoint(directory, weights.shapes, *rules) as tensors:
                weights.load(tensors)
        elif holds_megatron(place):
            folder = folder_of(Path(place))
            header = by_source(self, lambda: self._header(folder), Header)
            foreign.load_weights(folder, header.tensors, model)
        else:
            found = by_source(self, lambda: newest_valid(Path(place)), Checkpoint | None)
            if found is None:
                raise ConfigError(f"there is no checkpoint at {place}")
            state.load_weights(found.state, model)
        return model.to(device), weights

    def _take_optimizer(self, folder: Path) -> None:
        def read() -> Header:
            header = read_header(folder)
            state_in(folder, header)
            return header

        header = by_source(self, read, Header)
        foreign.load_optimizer(folder, header, self._stages, self._optimizer)

    def _header(self, folder: Path) -> Header:
        header = read_header(folder)
        check_header(folder, header, self._described)
        return header

    def run(self, model: str, micro_batches: Sequence[MicroBatch]) -> list[Tensor]:
        """See `TrainBackend.run`. ValueError for a model that was not asked for."""
        if model not in self._models:
            raise ValueError(f"there is no {model} model here, only {', '.join(self._models)}")
        if model != "policy":
            return forward_pass(self._models[model], micro_batches, self._layout)
        for replay in self._replays:
            replay.forget()
        around = [replay.record for replay in self._replays]
        return forward_pass(self._model, micro_batches, self._layout, around)

    def step(
        self,
        model: str,
        micro_batches: Sequence[MicroBatch],
        loss_fn: LossFn,
        lr_scale: float = 1.0,
    ) -> StepResult:
        """See `TrainBackend.step`. ValueError for a model that is not trained."""
        if model != "policy":
            raise ValueError(f"the model {model} is not trained here, only policy")
        self._optimizer.zero_grad()
        lr = self._optimizer.next_lr() * lr_scale
        coefficient = self._settings.moe_aux_loss_coeff
        balance.divide_auxiliary_loss(self._config, coefficient, micro_batches)
        biases = balance.correction_biases(self._model)
        around = [replay.replay for replay in self._replays]
        results = backward_pass(self._model, micro_batches, loss_fn, self._layout, around)
        finite, metrics = _over_ranks(results)
        skipped, grad_norm = self._optimizer.step(loss_is_finite=finite, lr_scale=lr_scale)
        if skipped:
            for bias, before in biases:
                bias.copy_(before)
        return StepResult(skipped=skipped, grad_norm=grad_norm, lr=lr, metrics=metrics)

    def renew(self, model: str) -> None:
        """See `TrainBackend.renew`."""
        self._finish_gathering()
        self._models[model].load_state_dict(self._stages.state_dict())

    def hf_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """See `TrainBackend.hf_tensors`."""
        self._finish_gathering()
        return self._weights.export()

    def save_hf(self, directory: Path) -> None:
        """See `TrainBackend.save_hf`; the source rank writes."""
        if self.is_source:
            dtype = parameter_dtype(self._settings)
            tensors = chain(self.hf_tensors(), self._passengers())
            checkpoint.write_checkpoint(directory, tensors, self._model_dir, dtype)
        else:
            for _ in self.hf_tensors():
                pass
        dist.barrier()

    def _passengers(self) -> Iterator[tuple[str, Tensor]]:
        """Of the model that gave the first weights; most families have none."""
        if self._described.family.is_passenger is not None:
            yield from checkpoint.passengers(self._first_dir, self._described.is_passenger)

    def save_state(self, directory: Path) -> None:
        """See `TrainBackend.save_state`."""
        self._finish_gathering()
        state.save(directory, self._stages, self._optimizer, self._renewed)

    def load_state(self, directory: Path) -> None:
        """See `TrainBackend.load_state`."""
        self._finish_gathering()
        state.load(directory, self._stages, self._optimizer, self._renewed)

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
        for name in (
            "_model",
            "_stages",
            "_models",
            "_renewed",
            "_optimizer",
            "_replays",
            "_weights",
        ):
            self.__dict__.pop(name, None)
        parallel.close_groups()

    def _finish_gathering(self) -> None:
        """With --overlap-param-gather the weights of other ranks come only with the next pass."""
        if self._settings.overlap_param_gather:
            for stage in self._model:
                stage.start_param_sync(force_sync=True)


def _sum_gradients(model: Any, _num_tokens: Any, **kwargs: Any) -> None:
    """Reduce gradients as sums: without a token count megatron-core does not divide."""
    finalize_model_grads(model, None, **kwargs)


def _over_ranks(results: list[tuple[float, Measures]]) -> tuple[bool, Measures]:
    """Whether every loss is finite, and the measures joined over micro-batches and replicas; equal
    on all ranks, in the order of ranks."""
    finite = all(math.isfinite(loss) for loss, _ in results)
    counted = [measures for _, measures in results] if parallel.speaks_for_replica() else []
    everyone = parallel.all_gather_msgpack([finite, counted])
    batches = (measures for _, counted in everyone for measures in counted)
    return all(rank_finite for rank_finite, _ in everyone), joined(batches)
