"""An agent worker process."""

import functools
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import anyio

from agentrl.actors.loop_watch import LoopWatch
from agentrl.actors.worker import Worker, WorkerSettings, tell_where
from agentrl.actors.worker_loop import WorkerLoop
from agentrl.clock import MonotonicClock
from agentrl.cluster.layout import INCARNATION
from agentrl.cluster.signals import until_sigterm
from agentrl.cluster.spec import RunSpec
from agentrl.cluster.standstill import listen
from agentrl.config.engine_groups import attention_ranks
from agentrl.config.engines import named_ranks
from agentrl.config.run import RunConfig
from agentrl.serving.client import EngineClient
from agentrl.serving.key import read_key
from agentrl.serving.spread import SpreadClient
from agentrl.serving.teacher import TeacherClient
from agentrl.wire.peer import BufferPeer

__all__ = ["client_settings", "main", "teacher_of"]


def client_settings(spec: RunSpec) -> dict[str, Any]:
    """What the worker's client of the engines is told, beside where they are."""
    config = spec.config
    permits = config.num_permits // config.num_agent_workers
    return {
        "vocab_size": spec.model.vocab_size,
        "max_context": spec.model.max_context,
        "num_permits": max(1, permits),
        "turn_timeout_s": config.turn_timeout_s,
        "partial_rollout": config.partial_rollout,
        # Such an engine draws all turns that bring no seed by the same one: the episodes of a group
        # would be copies.
        "seeded": bool(config.sglang.get("enable_deterministic_inference")),
        "cache_versions": config.kv_cache_versions if config.keeps_cache else None,
        "routes": spec.model.routes,
        "attention_ranks": named_ranks(config),
    }


def main(spec: RunSpec, name: str) -> None:
    """Play episodes until SIGTERM."""
    listen()
    work = functools.partial(_work, spec, name)
    anyio.run(until_sigterm, work, backend_options={"loop_factory": WorkerLoop})


def teacher_of(config: RunConfig) -> TeacherClient | None:
    """The served teacher of --use-opd, if that is what it has."""
    if not config.has_served_teacher:
        return None
    at_once = config.sglang_server_concurrency // config.num_agent_workers
    return TeacherClient(
        str(config.rm_url), num_at_once=max(1, at_once), timeout_s=config.turn_timeout_s
    )


async def _work(spec: RunSpec, name: str) -> None:
    config = spec.config
    settings = WorkerSettings.from_config(
        config,
        Path(spec.model_dir),
        spec.model.max_context,
        spec.services_of(name),
        spec.eval_sets,
    )
    teacher = teacher_of(config)
    worker = Worker(settings, teacher)
    client = EngineClient(
        spec.router_url or "",  # nobody asks where there are no engines
        spec.engines,
        key=read_key(spec.engine_key_file),
        clock=MonotonicClock(),
        **client_settings(spec),
    )
    evaluations = _client_of_evaluations(spec)
    peer = BufferPeer(
        spec.buffer_address,
        role="worker",
        name=name,
        incarnation=os.environ.get(INCARNATION),
        running=worker.running,
        keys=spec.peer_keys(),
    )
    others = teacher or nullcontext(), evaluations or nullcontext()
    async with LoopWatch(), others[0], client, others[1], peer:
        tell_where(peer.welcome.engines, client, evaluations)
        await worker.run(peer, client, evaluations)


def _client_of_evaluations(spec: RunSpec) -> SpreadClient | None:
    """The worker's client of the engines of --eval-mode apart."""
    if not spec.eval_engines:
        return None
    config = spec.config
    turns = config.sglang_server_concurrency * attention_ranks(config.sglang)
    told = client_settings(spec) | {
        "num_permits": max(1, turns // config.num_agent_workers),
        "partial_rollout": True,  # no push meets a turn
        "cache_versions": None,
        "routes": None,
        "waits_for_weights": True,
    }
    key, clock = read_key(spec.engine_key_file), MonotonicClock()
    return SpreadClient(
        {
            each.name: EngineClient(each.url, [each], key=key, clock=clock, **told)
            for each in spec.eval_engines
        }
    )
