"""A learner rank process. It trains in the main thread; its sockets live in side threads."""

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import FrameType
from typing import Any

import anyio
import torch

from agentrl.clock import MonotonicClock
from agentrl.cluster.layout import INCARNATION
from agentrl.cluster.signals import end_at_once, exit_at_once
from agentrl.cluster.spec import RunSpec
from agentrl.cluster.supervision import HOOK_FAILED
from agentrl.config.device_defaults import engine_dtype, engines_tell_digests
from agentrl.config.engines import shares_memory
from agentrl.config.run import RunConfig
from agentrl.errors import EngineError
from agentrl.learner.beside import by_source_in_turns
from agentrl.learner.collective_errors import Rank
from agentrl.learner.handover import Handover
from agentrl.learner.hook_watch import HookWatch
from agentrl.learner.hooks import AFTER_WRITE, LearnerHooks
from agentrl.learner.loop import run_learner
from agentrl.learner.megatron import MegatronBackend
from agentrl.learner.megatron.hf_weights import write_checkpoint
from agentrl.learner.profiling import open_profiler
from agentrl.learner.watched_algorithm import load_watched
from agentrl.models.registry import open_model
from agentrl.serving.control import EngineControl
from agentrl.serving.disk_sink import DiskWeightSink
from agentrl.serving.key import read_key
from agentrl.serving.members import NamedTensors
from agentrl.serving.push_files import PushFiles, PushSettings
from agentrl.serving.routing import RoutedWeightSink
from agentrl.serving.weights import FleetWeightSink
from agentrl.types import EngineAddress, WeightSink
from agentrl.wire.blocking import BlockingPeer

__all__ = [
    "await_engines",
    "disk_settings",
    "engines_ready",
    "hook_watch",
    "main",
    "router_settings",
    "sink_settings",
]

_LOG = logging.getLogger(__name__)
#: Between two looks for an engine that somebody else may start.
_LOOK_S = 0.5


def main(
    spec: RunSpec, rank: int, wrap: Callable[[WeightSink], WeightSink] = lambda sink: sink
) -> None:
    """Train until the buffer has no more leases or SIGTERM asks for an early end. `wrap`: what
    stands between the learner and the engines."""
    stop = threading.Event()

    def on_sigterm(number: int, frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, on_sigterm)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with hook_watch(spec.config) as watch:
        _train(spec, rank, wrap, stop.is_set, watch)


def _train(
    spec: RunSpec,
    rank: int,
    wrap: Callable[[WeightSink], WeightSink],
    should_stop: Callable[[], bool],
    watch: HookWatch,
) -> None:
    config = spec.config
    steps = config.num_rollout * config.num_steps_per_rollout if config.num_rollout else None
    algorithm = load_watched(config, watch)
    hooks = LearnerHooks(config, watch)
    engines = _emptied_engines(spec, rank, hooks) if config.colocate else None
    with _closed_if_it_fails(engines):
        profiler = open_profiler(config, Path(spec.run_dir), rank)
        backend = MegatronBackend(
            config,
            Path(spec.model_dir),
            rank=rank,
            world_size=config.num_learner_ranks,
            master_address=spec.master_address,
            master_port=spec.master_port,
            num_training_steps=steps,
            models=algorithm.needs.models,
            hooks=hooks,
        )
    if spec.router_url and not config.colocate:
        await_engines(spec, backend)
        engines = _sink(spec, spec.router_url, hooks) if backend.is_source else None
    sink = None if engines is None else wrap(engines)
    handover = Handover(backend, engines, MonotonicClock()) if config.colocate else None
    name = f"learner-{rank}"
    connection = BlockingPeer(
        spec.buffer_address,
        role="learner",
        name=name,
        incarnation=os.environ.get(INCARNATION),
        keys=spec.peer_keys(),
        on_fenced=exit_at_once,
    )
    try:
        with connection as peer:
            outcome = run_learner(
                algorithm,
                backend,
                peer,
                sink,
                clock=MonotonicClock(),
                should_stop=should_stop,
                handover=handover,
                profiler=profiler,
                hooks=hooks,
            )
        _LOG.info("%s ended: %s", name, outcome)
    finally:
        if sink is not None:
            sink.close()
        backend.close()


def hook_watch(config: RunConfig) -> HookWatch:
    """What ends this process where a function of the user's does not return."""
    return HookWatch(config.hook_timeout_s, partial(end_at_once, exit_code=HOOK_FAILED))


def sink_settings(spec: RunSpec) -> dict[str, Any]:
    """What the sender of weights is told, beside where the engines are."""
    config = spec.config
    return {
        "bucket_bytes": config.update_weight_buffer_size,
        "timeout_s": config.update_weights_timeout,
        "connect_s": config.call_timeout_s,
        "fleet_size": config.update_weights_fleet_size,
        "engine_dtype": getattr(torch, engine_dtype(config), None),
        "tells_digests": engines_tell_digests(config),
        "pushes_draft": config.pushes_draft,
        "keeps_cache": config.keeps_cache,
        "shares_devices": config.colocate,
        "shares_memory": shares_memory(config),
        "keeps_memory": config.colocate and not config.offload_rollout,
        "ports": tuple(spec.push_ports),
    }


def router_settings(config: RunConfig) -> dict[str, Any]:
    """The same of what tells the router."""
    return {"shares_devices": config.colocate, "timeout_s": config.call_timeout_s / 2}


def disk_settings(spec: RunSpec) -> dict[str, Any]:
    """The same of one that writes files."""
    config, run_dir = spec.config, Path(spec.run_dir)
    # Runs of one id in different --run-dirs may share a disk.
    name = f"{run_dir.name}-{sha256(str(run_dir.parent.absolute()).encode()).hexdigest()[:8]}"
    assert config.update_weight_disk_dir is not None
    copy = config.update_weight_local_checkpoint_dir
    encoding = config.update_weight_delta_encoding
    return {
        "files": PushSettings(
            root=Path(config.update_weight_disk_dir) / name,
            keeps=config.update_weight_disk_keep_files,
            encoding=encoding if config.update_weight_mode == "delta" else None,
            checksum=config.update_weight_delta_checksum,
        ),
        "copy": None if copy is None else Path(copy) / name,
        "timeout_s": config.update_weights_timeout,
        "engine_dtype": getattr(torch, engine_dtype(config), None),
        "tells_digests": engines_tell_digests(config),
    }


def _emptied_engines(spec: RunSpec, rank: int, hooks: LearnerHooks) -> RoutedWeightSink | None:
    """Wait for engines that share devices with the learner; the source rank, which alone gets the
    way to them, has them release their memory. No rank takes any before: ranks meet afterwards."""
    assert spec.router_url is not None
    anyio.run(engines_ready, spec)
    if rank:
        return None
    engines = _sink(spec, spec.router_url, hooks)
    with _closed_if_it_fails(engines):
        engines.release()
    return engines


@contextmanager
def _closed_if_it_fails(engines: RoutedWeightSink | None) -> Iterator[None]:
    """Its thread would keep a process alive that has nothing left to do."""
    try:
        yield
    except BaseException:
        if engines is not None:
            engines.close()
        raise


def _sink(spec: RunSpec, router_url: str, hooks: LearnerHooks) -> RoutedWeightSink:
    """The way to the engines, which are there."""
    key = read_key(spec.engine_key_file)
    family = open_model(Path(spec.model_dir), spec.config.model_family).family

    def open_sink(on_lost: Callable[[EngineAddress], None]) -> WeightSink:
        told: dict[str, Any] = {"on_lost": on_lost, "key": key, "fused": family.engine_fused}
        if spec.config.update_weight_transport == "disk":
            return _disk_sink(spec, hooks, told)
        return FleetWeightSink(
            spec.engines,
            # NCCL refuses two ranks on one device.
            backend="nccl" if torch.cuda.is_available() and not spec.config.colocate else "gloo",
            host=spec.collective_address,
            **told,
            **sink_settings(spec),
        )

    told = router_settings(spec.config)
    return RoutedWeightSink(router_url, spec.engines, open_sink, key, **told)


def _disk_sink(spec: RunSpec, hooks: LearnerHooks, told: dict[str, Any]) -> DiskWeightSink:
    settings = disk_settings(spec)
    dtype = settings["engine_dtype"] or torch.bfloat16

    def write_model(folder: Path, tensors: NamedTensors) -> None:
        write_checkpoint(folder, tensors, Path(spec.model_dir), dtype)

    def after_write(folder: Path, engines: list[str]) -> None:
        hooks.call_here(AFTER_WRITE, str(folder), engines)

    files = PushFiles(settings.pop("files"), write_model)
    return DiskWeightSink(spec.engines, files=files, after_write=after_write, **told, **settings)


def await_engines(spec: RunSpec, rank: Rank) -> None:
    """As `engines_ready`, for all ranks: those that do not look themselves wait in turns."""
    by_source_in_turns(rank, lambda: anyio.run(engines_ready, spec))


async def engines_ready(spec: RunSpec) -> None:
    """Return when every engine can be given weights; of engines that somebody else started, when
    one can, for nobody here starts another again."""
    key = read_key(spec.engine_key_file)
    if spec.config.rollout_external_engine_addrs:
        await _one_is_ready(spec, key)
        return
    async with anyio.create_task_group() as group:
        for engine in spec.engines:
            group.start_soon(_engine_ready, engine, key, spec.config)


async def _engine_ready(engine: EngineAddress, key: str | None, config: RunConfig) -> None:
    async with EngineControl(engine, timeout_s=10.0, key=key) as control:
        if config.colocate:  # it is about to be paused: not while it warms up
            await control.wait_ready(config.start_timeout_s, path="/health")
        else:
            await control.wait_alive(config.start_timeout_s)


async def _one_is_ready(spec: RunSpec, key: str | None) -> None:
    ready: list[str] = []

    async def wait(engine: EngineAddress) -> None:
        async with EngineControl(engine, timeout_s=10.0, key=key) as control:
            # A server announces itself by answering; there is no event to wait for.
            while not await control.is_alive():  # noqa: ASYNC110
                await anyio.sleep(_LOOK_S)
        ready.append(engine.name)
        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.cancel_scope.deadline = anyio.current_time() + spec.config.start_timeout_s
        for engine in spec.engines:
            group.start_soon(wait, engine)
    if not ready:
        raise EngineError(
            f"none of the {len(spec.engines)} engines of --rollout-external-engine-addrs answered "
            f"within {spec.config.start_timeout_s:g} s (--start-timeout-s)"
        )
