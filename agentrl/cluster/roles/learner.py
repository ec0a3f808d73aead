"""A learner rank process. It trains in the main thread; its sockets live in side threads."""

import logging
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import anyio
import torch

from agentrl.algorithms.load import load_algorithm
from agentrl.clock import MonotonicClock
from agentrl.cluster.layout import INCARNATION
from agentrl.cluster.signals import exit_at_once
from agentrl.cluster.spec import RunSpec
from agentrl.config.device_defaults import engine_dtype, engines_tell_digests
from agentrl.learner.loop import run_learner
from agentrl.learner.megatron import MegatronBackend
from agentrl.models.registry import open_model
from agentrl.serving.control import EngineControl
from agentrl.serving.key import read_key
from agentrl.serving.routing import RoutedWeightSink
from agentrl.serving.weights import FleetWeightSink
from agentrl.types import EngineAddress, WeightSink
from agentrl.wire.blocking import BlockingPeer

__all__ = ["main", "sink_settings"]

_LOG = logging.getLogger(__name__)


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
    config = spec.config
    steps = config.num_rollout * config.num_steps_per_rollout if config.num_rollout else None
    algorithm = load_algorithm(config)
    backend = MegatronBackend(
        config,
        Path(spec.model_dir),
        rank=rank,
        world_size=config.num_learner_ranks,
        master_address=spec.master_address,
        master_port=spec.master_port,
        num_training_steps=steps,
        models=algorithm.needs.models,
    )
    sink = wrap(_sink(spec, spec.router_url)) if backend.is_source and spec.router_url else None
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
                should_stop=stop.is_set,
            )
        _LOG.info("%s ended: %s", name, outcome)
    finally:
        if sink is not None:
            sink.close()
        backend.close()


def sink_settings(spec: RunSpec) -> dict[str, Any]:
    """What the sender of weights is told, beside where the engines are."""
    config = spec.config
    return {
        "bucket_bytes": config.update_weight_buffer_size,
        "timeout_s": config.update_weights_timeout,
        "fleet_size": config.update_weights_fleet_size,
        "ranks_per_engine": config.rollout_num_gpus_per_engine,
        "engine_dtype": getattr(torch, engine_dtype(config), None),
        "tells_digests": engines_tell_digests(config),
    }


def _sink(spec: RunSpec, router_url: str) -> RoutedWeightSink:
    """The way to the engines; returns when all of them are there."""
    anyio.run(_engines_ready, spec)
    key = read_key(spec.engine_key_file)
    family = open_model(Path(spec.model_dir), spec.config.model_family).family

    def open_sink(on_lost: Callable[[EngineAddress], None]) -> FleetWeightSink:
        return FleetWeightSink(
            spec.engines,
            on_lost=on_lost,
            backend="nccl" if torch.cuda.is_available() else "gloo",
            host=spec.collective_address,
            key=key,
            fused=family.engine_fused,
            **sink_settings(spec),
        )

    return RoutedWeightSink(router_url, spec.engines, open_sink, key)


async def _engines_ready(spec: RunSpec) -> None:
    key = read_key(spec.engine_key_file)
    async with anyio.create_task_group() as group:
        for engine in spec.engines:
            group.start_soon(_engine_ready, engine, key, spec.config.start_timeout_s)


async def _engine_ready(engine: EngineAddress, key: str | None, timeout_s: float) -> None:
    async with EngineControl(engine, timeout_s=10.0, key=key) as control:
        await control.wait_alive(timeout_s)
