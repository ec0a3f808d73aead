"""What the processes of a run are told, and what they read: made by the code that starts them.

`told` is compared between two values of a flag: addresses, commands, settings of buffer and worker,
tasks, evaluations, and the weights after two real steps of the learner. `read` are the names of
fields that the learner and the driver ask their whole configuration for while they run.
"""

import hashlib
import re
import tempfile
from array import array
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, cast

import anyio
import msgspec
import torch

from agentrl.actors.limits import Limits
from agentrl.actors.worker import Worker, WorkerSettings
from agentrl.algorithms.load import load_algorithm
from agentrl.buffer.settings import BufferSettings
from agentrl.cluster.driver import Driver
from agentrl.cluster.evaluator import Evaluator
from agentrl.cluster.events import RunState
from agentrl.cluster.layout import RunDir
from agentrl.cluster.orders import plan_processes
from agentrl.cluster.own_ray import ray_options
from agentrl.cluster.placement import Cluster
from agentrl.cluster.rescheduling import Rescheduler
from agentrl.cluster.roles.learner import disk_settings, hook_watch, sink_settings
from agentrl.cluster.roles.worker import client_settings
from agentrl.cluster.slots import Supply, plan_slots
from agentrl.cluster.spec import RunSpec
from agentrl.cluster.tracking import trackers
from agentrl.config.descriptors import open_files
from agentrl.config.external_engines import external_key
from agentrl.config.port_range import ports_of
from agentrl.config.rollouts import loaded_files
from agentrl.config.run import RunConfig
from agentrl.config.sampling import training_turns
from agentrl.envs.chat_formats import with_chat_format
from agentrl.envs.registry import load_env
from agentrl.envs.services import services_of_run
from agentrl.envs.tasks import open_eval_sets, open_source
from agentrl.learner.hooks import LearnerHooks
from agentrl.learner.iteration import train_lease
from agentrl.learner.megatron import MegatronBackend
from agentrl.learner.profiling import ProfilerSettings
from agentrl.learner.rollout_only import run_rollout_only
from agentrl.types import EpisodeAssignment, EpisodeId, SamplingParams, Task
from tests.integration.learner_world import Labels, World, WorldPeer, learn
from tests.integration.toy_backend import VOCABULARY
from tests.manual_clock import ManualClock
from tests.parity.golden import Batch, TableBackend, lineage

__all__ = ["is_told_apart", "read", "read_playing", "told"]

_DIALOGUE = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hello"}]
_noted: set[str] = set()
_OF_DRIVER = {*Driver._conduct.__code__.co_names, *Rescheduler.patience_s.__code__.co_names}


class _OneNode:
    """A cluster of which only addresses are asked."""

    def address_of(self, process: str) -> str:
        return "127.0.0.1"

    def reserve_port(self, process: str) -> int:
        return 4000

    def slots(self) -> list[str]:
        return ["host"]


class _Noted(RunConfig, frozen=True, kw_only=True):
    """Notes the names of the fields that are asked for."""

    def __getattribute__(self, name: str) -> Any:
        _noted.add(name)
        return super().__getattribute__(name)


class _NotedLimits(Limits, frozen=True, kw_only=True):
    def __getattribute__(self, name: str) -> Any:
        _noted.add(name)
        return super().__getattribute__(name)


def told(config: RunConfig) -> dict[str, str]:
    """What every process of the run is told, as text that two runs can be compared by."""
    return dict(_parts(config))


def is_told_apart(one: RunConfig, other: RunConfig) -> bool:
    """Whether some process of the runs is told something else; made until one is found."""
    with closing(_parts(one)) as parts, closing(_parts(other)) as others:
        return any(part != its for part, its in zip(parts, others, strict=True))


def _parts(config: RunConfig) -> Generator[tuple[str, str]]:
    run = RunDir(config)
    with tempfile.TemporaryDirectory() as folder:
        run.private = Path(folder)
        for name, value in _told(config, run):
            text = repr(value).replace(folder, "PRIVATE").replace(config.run_id or run.id, "ID")
            yield name, re.sub(" at 0x[0-9a-f]+", "", text)


def _told(config: RunConfig, run: RunDir) -> Iterator[tuple[str, Any]]:
    env_class = load_env(config.env or "single-turn")
    spec, orders = plan_processes(config, run, cast(Cluster, _OneNode()), {}, "cpu")
    addresses = msgspec.structs.replace(spec, config=RunConfig(), eval_sets=[])
    yield "run", (config.device, config.run_id, run.path, run._resume)
    slots = plan_slots(config, Supply("GPU", (100, 100)), {})
    yield "processes", (addresses, orders, slots, external_key(config))
    yield "host", (ray_options(config.ray_address, run.ray), config.place_timeout_s)
    yield "calls", (ports_of(config), config.call_timeout_s)
    yield "trackers", trackers(config)
    if "engines" in config.halves:
        yield "worker", _worker(config, spec)
    if "learner" in config.halves:
        yield "hooks", _hooks(config)
    if config.mode != "eval":
        yield "buffer", _buffer(config)
        yield "files", (config.saved_rollouts, config.custom_rollout_log_function_path)
    if config.loads_rollouts:
        yield "loaded", loaded_files(config)
    if config.mode != "eval" and "engines" in config.halves:
        yield "tasks", vars(open_source(config, env_class))
        yield "open files", open_files(config)
    if config.mode != "eval" and "learner" in config.halves:
        yield "hook watch", hook_watch(config).limit_s
        yield "learner", [_trained(config, seed) for seed in range(4)]
        yield "profiler", ProfilerSettings.from_config(config, run.path)
    if config.mode != "supervised" and "engines" in config.halves:
        sets = open_eval_sets(config, env_class)
        parts: Any = (None, RunState(), None, spec.eval_sets)
        how: Any = "alone" if config.eval_interval is None else "beside"
        evaluator = Evaluator(config, sets, *parts)
        yield "evaluations", [evaluator._order(name, 0, how) for name in sets]
        on_disk = config.update_weight_transport == "disk"
        weights = disk_settings(spec) if on_disk else sink_settings(spec)
        pushes = weights if "learner" in config.halves else config.update_weights_timeout
        yield "turns", (client_settings(spec), pushes)
        buffer = BufferSettings.from_config(config, "", SamplingParams())
        yield "permits", (buffer.num_permits, buffer.hold_patience_s)


def _buffer(config: RunConfig) -> Any:
    """Where all leases are there nothing is minted or claimed: what was trained is kept so long."""
    if "engines" not in config.halves:
        return config.keep_trajectories
    return BufferSettings.from_config(config, "", training_turns(config))


def _hooks(config: RunConfig) -> Any:
    """Functions of the user's in the learner, and what they find in their `args`."""
    hooks = LearnerHooks(config)
    more = {
        name: getattr(hooks._args, name) for name in ("mis_level",) if hasattr(hooks._args, name)
    }
    return sorted(hooks._named.items()), more


def _worker(config: RunConfig, spec: RunSpec) -> Any:
    processes = services_of_run(config, spec.eval_sets).processes
    services = {name: f"http://{name}" for name in processes}
    settings = WorkerSettings.from_config(
        config, Path(spec.model_dir), 512, services, spec.eval_sets
    )
    told: list[Any] = [settings.max_concurrent_episodes, settings.chat_format]
    if config.mode == "supervised":
        return [*told, settings.demonstration_key, _of_demonstrations(settings)]
    return [*told, settings if config.mode == "policy" else _without_filter(settings)]


def _without_filter(settings: WorkerSettings) -> WorkerSettings:
    """Evaluations are not filtered."""
    return msgspec.structs.replace(settings, filter_path=None)


def _of_demonstrations(settings: WorkerSettings) -> dict[str, Any]:
    """The limits that a dialogue is really held against."""
    limits = _NotedLimits(**msgspec.structs.asdict(settings.limits))
    worker = Worker(msgspec.structs.replace(settings, limits=limits, filter_path=None))
    task = Task("t", {str(settings.demonstration_key): _DIALOGUE})
    assignment = EpisodeAssignment(EpisodeId("g", 0), 0, 0, task, SamplingParams())
    _noted.clear()
    client: Any = None
    anyio.run(worker.player.play, assignment, client)
    return {name: getattr(settings.limits, name) for name in _noted & {*Limits.__struct_fields__}}


def _trained(config: RunConfig, seed: int) -> str:
    """The weights after two steps on one lease, what was measured, and what is remembered."""
    config = msgspec.structs.replace(config, num_steps_per_rollout=2, max_tokens_per_gpu=160)
    batch, backend = Batch(seed), TableBackend(seed)
    algorithm = load_algorithm(config)
    parts: Any = (batch.header, algorithm, backend, lineage(), batch.fetch)
    result = train_lease(*parts)
    every = torch.cat([backend.table.detach().flatten(), backend.values.detach()])
    weights = array("f", every.tolist())
    sums = [sorted(step.metrics.items()) for steps in result.steps.values() for step in steps]
    return hashlib.sha256(weights).hexdigest() + str(sums) + repr(algorithm.state())


def read(config: RunConfig, port: int) -> set[str]:
    """The fields that learner and driver ask for."""
    values = {**msgspec.structs.asdict(config), "max_tokens_per_gpu": 64}
    _noted.clear()
    with _backend(_Noted(**values), port), tempfile.TemporaryDirectory() as folder:
        learn_values = {**values, "save": None, "run_dir": folder, "run_id": "r"}
        if config.loads_rollouts:
            place = f"{folder}/{{rollout_id}}"
            learn(World([2, 2]), save_debug_rollout_data=place)
            learn_values["load_debug_rollout_data"] = place
        world = World([] if config.mode == "eval" else [2, 2])
        world.tables[0] = torch.zeros(VOCABULARY, VOCABULARY)  # where nobody publishes
        learn(world, config_class=_Noted, **learn_values)
    return (_noted | _OF_DRIVER) & {*RunConfig.__struct_fields__}


def read_playing(config: RunConfig) -> set[str]:
    """The fields that are asked for where nothing is trained: by the driver, by who looks for the
    format of turns, and by what stands in the learner's place."""
    noted = _Noted(**msgspec.structs.asdict(config))
    _noted.clear()
    with_chat_format(noted)
    world, clock = World([2, 2]), ManualClock()
    run_rollout_only(noted, WorldPeer(world, clock), Labels(world), clock=clock)
    return (_noted | _OF_DRIVER) & {*RunConfig.__struct_fields__}


@contextmanager
def _backend(config: RunConfig, port: int) -> Iterator[None]:
    algorithm = load_algorithm(config)
    backend = MegatronBackend(
        config,
        Path(str(config.hf_checkpoint)),
        rank=0,
        world_size=1,
        master_address="127.0.0.1",
        master_port=port,
        num_training_steps=10,
        models=algorithm.needs.models,
    )
    try:
        if config.mode != "eval":
            batch = Batch(1)
            train_lease(batch.header, algorithm, backend, lineage(), batch.fetch)
        yield
    finally:
        backend.close()
