"""From a resolved configuration to an exit code: place, start, conduct, stop, summarize."""

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

import anyio
import msgspec

from agentrl.clock import Clock, MonotonicClock
from agentrl.cluster.driver import Driver
from agentrl.cluster.external_engines import leave_engines
from agentrl.cluster.external_router import leave_router
from agentrl.cluster.host import ProcessOrder
from agentrl.cluster.joined import check_nodes
from agentrl.cluster.layout import RunDir, with_run
from agentrl.cluster.loaded import take_rollouts, with_loaded
from agentrl.cluster.orders import plan_processes
from agentrl.cluster.placement import Cluster
from agentrl.cluster.remains import judge
from agentrl.cluster.signals import InterruptedRunError, SignalGate
from agentrl.cluster.slots import plan_slots
from agentrl.cluster.spec import RunSpec, key_files
from agentrl.cluster.tracking import shown_config, trackers
from agentrl.config.device import Device, choose_device
from agentrl.config.device_defaults import check_device, notes_on_device
from agentrl.config.eval_sets import eval_sets
from agentrl.config.external_engines import external_key
from agentrl.config.mixture import ways_of
from agentrl.config.places import checkpoint_root
from agentrl.config.port_range import ports_of
from agentrl.config.rates import with_end
from agentrl.config.run import RunConfig
from agentrl.config.save_lock import locked
from agentrl.config.secrets import secrets_of, without_secrets
from agentrl.config.toml import write_config
from agentrl.envs.env import ServiceSpec
from agentrl.envs.registry import load_env
from agentrl.envs.services import needs_of, services_of_run
from agentrl.envs.tasks import open_tasks
from agentrl.errors import (
    AgentRLError,
    ConfigError,
    DataError,
    HealthError,
    InfrastructureError,
    RestartsSpentError,
)
from agentrl.telemetry.logging import setup_logging
from agentrl.telemetry.recorder import Recorder
from agentrl.telemetry.trackers.run import TrackedRun

__all__ = ["Plan", "launch"]

_LOG = logging.getLogger("agentrl.driver")
#: Together with the buffer's drain these stay below the 10 s that a drain may take.
_LEARNER_GRACE_S, _STOP_GRACE_S = 5.0, 1.0
#: Of a learner that has to take its memory back from the engines before it can save.
_SHARING_GRACE_S = 60.0
#: Errors that lie in what a run was given, or in what it learnt: continued as it is, it would fail
#: again. The run has `failed`; after any other error it has `crashed`.
_LASTING = (ConfigError, DataError, HealthError)
#: Of a run before any process is started; `plan_processes`, or what stands in for it.
Plan = Callable[
    [RunConfig, RunDir, Cluster, dict[str, ServiceSpec], Device],
    tuple[RunSpec, list[ProcessOrder]],
]


def launch(config: RunConfig, origin: float, plan: Plan = plan_processes) -> int:
    """Run `config` to its end; returns the exit code of the program.

    0 complete, 2 configuration, 3 host, 4 health, 65 data, 130 SIGINT, 143 SIGTERM, else 70.
    `origin` is the clock's reading when the program began. `plan` says which processes there are.
    """
    clock = MonotonicClock()
    with SignalGate() as gate:
        try:
            with RunDir(config, gate.check) as run, _save_lock(config, run):
                return _recorded(config, run, origin, clock, gate, plan)
        except InterruptedRunError as interrupt:  # while it waited to enter the run directory
            return 128 + interrupt.number


def _save_lock(config: RunConfig, run: RunDir) -> AbstractContextManager[None]:
    """The folder of the user's that the run saves to, held for it. One in the run's own directory
    is nobody else's."""
    if config.save is None or config.eval_only:
        return nullcontext()
    return locked(checkpoint_root(config.save, run.path, run.id), run.record)


def _recorded(
    config: RunConfig, run: RunDir, origin: float, clock: Clock, gate: SignalGate, plan: Plan
) -> int:
    """Run `config` in its directory and write down how it ends; returns the exit code."""
    # The file can be run again: it says what to train, not under which name.
    told = msgspec.structs.replace(config, run_id=None, resume="never")
    write_config(run.path / "config.toml", told)
    config = with_run(config, run)
    log = run.path / "logs" / "driver.log"
    setup_logging("INFO", name="driver", path=log, secrets=secrets_of(config))
    shown = shown_config(config)
    openers = [
        partial(TrackedRun, each, run.path, run.id, shown, secrets=secrets_of(config))
        for each in trackers(config)
    ]
    config = without_secrets(config)
    with Recorder(
        run.path, config, clock, run_id=run.id, origin=origin, openers=openers
    ) as recorder:
        status, code, error = "crashed", 70, None
        failed: Exception | None = None
        recorder.note(f"run directory {run.path}")
        try:
            _launch(config, run, recorder, clock, gate, plan)
            status, code = "complete", 0
        except InterruptedRunError as interrupt:
            status, code = "interrupted", 128 + interrupt.number
        except AgentRLError as failure:
            status = "failed" if isinstance(failure, _LASTING) else "crashed"
            code, error = failure.exit_code, str(failure)
            failed = failure
            _LOG.error("%s", failure)
        except Exception as failure:
            error, failed = f"{type(failure).__name__}: {failure}", failure
            _LOG.exception("the driver failed")
        finally:
            if status in ("crashed", "failed"):
                run.keep_ray_logs()
            recorder.finish(status, error)
            may_go_on = status in ("interrupted", "crashed") and (run.path / "ledger.db").exists()
            hint = _hint(run.path, status, failed) if may_go_on else ""
            recorder.end(f"{recorder.epitaph(status)}; see {run.path}{hint}")
    return code


def _hint(run: Path, status: str, failure: Exception | None) -> str:
    """How a run goes on that was interrupted or has crashed. Only what may be tried again unchanged
    is promised to: a process that died again and again, a host that lacks something or a bug may
    well end it once more."""
    if isinstance(failure, RestartsSpentError):
        return f"; {failure.told}; --resume {run} goes on if what ended it is mended"
    if status == "interrupted" or isinstance(failure, InfrastructureError):
        return f"; --resume {run} goes on"
    return f"; --resume {run} goes on if what ended it is mended"


def _launch(
    config: RunConfig,
    run: RunDir,
    recorder: Recorder,
    clock: Clock,
    gate: SignalGate,
    plan: Plan,
) -> None:
    if config.is_continued:
        for note in judge(run.path, config):
            recorder.note(note)
    with gate.interrupting():  # user code, and nothing is started yet
        env_class = load_env(config.env or "single-turn")
        for way in ways_of(config):
            recorder.explain(load_env(way.env or "single-turn").described_metrics())
        config = with_loaded(config)
        tasks = open_tasks(config, env_class, run.path)
        config = with_end(config, tasks.source)
        for note in tasks.notes:
            recorder.note(note)
        if config.evaluates_apart and not tasks.eval_sets:
            raise ConfigError(
                "--eval-mode apart: there is no evaluation set; name one with --eval-prompt-data "
                "NAME FILE, or leave it out"
            )
        sets = list(eval_sets(config).values())
        for one in sets:
            recorder.explain(load_env(one.env).described_metrics())
        services = services_of_run(config, sets).processes
    if config.loads_rollouts:
        tasks, services = msgspec.structs.replace(tasks, eval_sets={}), {}
        for note in take_rollouts(config, run.path):
            recorder.note(note)
    recorder.phase("parsed")
    ports, call_s = ports_of(config), config.call_timeout_s
    with Cluster(config.ray_address, run.ray, ports, call_s) as cluster:
        gate.arm()
        gate.check()
        device = _device(config, recorder, cluster, gate)
        config = msgspec.structs.replace(config, device=device)
        supply = cluster.supply(device)
        slots = plan_slots(config, supply, *needs_of(services))
        cluster.place(slots, supply.device, gate.check, config.place_timeout_s)
        recorder.phase("placed")
        check_nodes(cluster, config)
        spec, orders = plan(config, run, cluster, services, device)
        for key in key_files(spec):
            cluster.write_file(str(key), key.read_bytes())
        cluster.write_file(str(run.spec), msgspec.json.encode(spec))
        driver = Driver(
            run=run,
            spec=spec,
            cluster=cluster,
            orders=orders,
            tasks=tasks,
            recorder=recorder,
            clock=clock,
        )
        gate.check()
        try:
            _run_driver(driver, gate)
        finally:
            # From here on everything is ending; a further signal changes nothing.
            gate.arm()
            _stop(cluster, orders, _SHARING_GRACE_S if config.colocate else _LEARNER_GRACE_S)
            if spec.router_url is not None and not config.starts_router:
                for note in anyio.run(leave_router, spec):
                    recorder.note(note)
            state = driver.state
            began = state.is_pushing or (state.version is not None and not config.plays_only)
            if config.rollout_external_engine_addrs and began:
                for note in anyio.run(leave_engines, spec.engines, external_key(config)):
                    recorder.note(note)


def _device(config: RunConfig, recorder: Recorder, cluster: Cluster, gate: SignalGate) -> Device:
    """Where the model runs. `parse` has decided it, but for a cluster that had to be joined first.

    Raises EnvironmentSetupError for CUDA where that cannot be.
    """
    wanted = config.device
    if wanted == "cpu" or (wanted == "cuda" and config.ray_address is None):
        return wanted
    choice = choose_device(wanted, cluster.device_facts(gate.check, config.start_timeout_s))
    check_device(config, choice.device)
    for note in (str(choice), *notes_on_device(config, choice.device)):
        recorder.note(note)
    return choice.device


def _stop(
    cluster: Cluster, orders: Sequence[ProcessOrder], learner_grace_s: float = _LEARNER_GRACE_S
) -> None:
    """The learner first: it saves its weights and tells the buffer, which must still be there. The
    engines last, wherever they run: a host knows only what is in its own slot."""
    learners = [order.name for order in orders if order.kind == "learner"]
    others = [order.name for order in orders if order.kind != "engine"]
    stages = ((learners, learner_grace_s), (others, _STOP_GRACE_S), (None, _STOP_GRACE_S))
    for names, grace_s in stages:
        try:
            cluster.stop(names, grace_s)
        except InfrastructureError as error:  # how the run ended is not decided here
            _LOG.error("%s", error)


def _run_driver(driver: Driver, gate: SignalGate) -> None:
    try:
        anyio.run(driver.run, gate.check)
    except BaseExceptionGroup as group:
        raise _cause(group) from group


def _cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that ended a task group: an interrupt before an agentrl error before any other."""
    leaves: list[BaseException] = []
    pending: list[BaseException] = [group]
    while pending:
        error = pending.pop()
        if isinstance(error, BaseExceptionGroup):
            pending.extend(error.exceptions)
        else:
            leaves.append(error)
    order = (InterruptedRunError, AgentRLError, BaseException)
    return min(leaves, key=lambda e: next(i for i, kind in enumerate(order) if isinstance(e, kind)))
