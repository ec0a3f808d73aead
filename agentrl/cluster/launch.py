"""From a resolved configuration to an exit code: place, start, conduct, stop, summarise."""

import logging
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import msgspec

from agentrl.clock import Clock, MonotonicClock
from agentrl.cluster.driver import Driver
from agentrl.cluster.host import ProcessOrder
from agentrl.cluster.layout import RunDir, role_order
from agentrl.cluster.phases import Phases
from agentrl.cluster.placement import Cluster, plan_slots
from agentrl.cluster.services import service_command
from agentrl.cluster.signals import InterruptedRunError, SignalGate
from agentrl.cluster.spec import RunSpec, read_model_facts
from agentrl.config.run import RunConfig
from agentrl.config.toml import write_config
from agentrl.envs.env import ServiceSpec
from agentrl.envs.registry import load_env
from agentrl.envs.tasks import open_eval_sets, open_source
from agentrl.errors import AgentRLError, ConfigError
from agentrl.serving.launch import Device, engine_command, router_command
from agentrl.telemetry.logging import setup_logging
from agentrl.telemetry.recorder import Recorder
from agentrl.types import EngineAddress
from agentrl.wire.keys import make_keys

__all__ = ["launch"]

_LOG = logging.getLogger("agentrl.driver")
_CPU_ENV = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
#: Together with the buffer's drain these stay below the 10 s that a drain may take.
_LEARNER_GRACE_S, _STOP_GRACE_S = 5.0, 1.0


def launch(config: RunConfig, origin: float, clock: Clock | None = None) -> int:
    """Run `config` to its end; returns the exit code of the program.

    0 complete, 2 configuration, 3 host, 4 health, 65 data, 130 SIGINT, 143 SIGTERM, else 70.
    `origin` is the clock's reading when the program began.
    """
    clock = clock or MonotonicClock()
    with SignalGate() as gate, RunDir(config) as run:
        # The file can be run again: it says what to train, not under which name.
        told = msgspec.structs.replace(config, run_id=None, resume="never")
        write_config(run.path / "config.toml", told)
        config = msgspec.structs.replace(config, run_id=run.id, run_dir=str(run.path.parent))
        setup_logging("INFO", name="driver", path=run.path / "logs" / "driver.log")
        phases = Phases(run.path / "phases.json", clock, origin)
        with Recorder(run.path, config, clock) as recorder:
            status, code, error = "failed", 70, None
            recorder.note(f"run directory {run.path}")
            try:
                _launch(config, run, recorder, phases, clock, gate)
                status, code = "complete", 0
            except InterruptedRunError as interrupt:
                status, code = "interrupted", 128 + interrupt.number
            except AgentRLError as failure:
                code, error = failure.exit_code, str(failure)
                _LOG.error("%s", failure)
            except Exception as failure:
                error = f"{type(failure).__name__}: {failure}"
                _LOG.exception("the driver failed")
            finally:
                recorder.finish(status, error)
                recorder.note(f"{recorder.epitaph(status)}; see {run.path}")
    return code


def _launch(
    config: RunConfig,
    run: RunDir,
    recorder: Recorder,
    phases: Phases,
    clock: Clock,
    gate: SignalGate,
) -> None:
    env_class = load_env(config.env or "single-turn")
    source = open_source(config, env_class)
    eval_sets = open_eval_sets(config, env_class)
    if config.eval_only and not eval_sets:
        raise ConfigError(
            f"--eval-only: --env {config.env} brings no evaluation sets; name some with "
            "--eval-prompt-data NAME PATH"
        )
    services = env_class.service_specs(config.env_args)
    phases.mark("parsed")
    with Cluster(config.ray_address) as cluster:
        gate.arm()
        gate.check()
        num_gpus = cluster.num_gpus()
        cluster.place(plan_slots(config, num_gpus, list(services)))
        phases.mark("placed")
        spec, orders, ready = _plan(config, run, cluster, services, "cuda" if num_gpus else "cpu")
        cluster.write_file(str(run.spec), msgspec.json.encode(spec))
        for key in sorted(Path(spec.keys_dir).iterdir()) if spec.keys_dir else ():
            cluster.write_file(str(key), key.read_bytes())
        driver = Driver(
            run=run,
            spec=spec,
            cluster=cluster,
            orders=orders,
            ready_urls=ready,
            source=source,
            eval_sets=eval_sets,
            recorder=recorder,
            phases=phases,
            clock=clock,
        )
        gate.check()
        try:
            _run_driver(driver)
        finally:
            # From here on everything is ending; a further signal changes nothing.
            gate.arm()
            _stop(cluster, config)


def _stop(cluster: Cluster, config: RunConfig) -> None:
    """The learner first: it saves its weights and tells the buffer, which must still be there."""
    learners = [f"learner-{rank}" for rank in range(config.num_learner_ranks)]
    cluster.stop(learners, _LEARNER_GRACE_S)
    cluster.stop(None, _STOP_GRACE_S)


def _run_driver(driver: Driver) -> None:
    try:
        anyio.run(driver.run)
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


def _plan(
    config: RunConfig,
    run: RunDir,
    cluster: Cluster,
    services: dict[str, ServiceSpec],
    device: Device,
) -> tuple[RunSpec, list[ProcessOrder], dict[str, str]]:
    """Addresses, process orders in starting order, and what must answer before training."""
    model_dir = Path(str(config.hf_checkpoint)).resolve()
    facts = read_model_facts(model_dir, config.rollout_max_context_len)
    names = [f"engine-{i}" for i in range(config.num_engines)]
    engines = [EngineAddress(name, _url(cluster, name)) for name in names]
    ports = {name: cluster.reserve_port(name) for name in services}
    keys_dir = None
    address = f"ipc://{run.private}/buffer.sock"
    if len(cluster.slots()) > 1:
        keys_dir = run.private / "keys"
        make_keys(keys_dir)
        port = cluster.reserve_port("buffer")
        address = f"tcp://{cluster.address_of('buffer')}:{port}"
    spec = RunSpec(
        config=config,
        run_dir=str(run.path),
        model_dir=str(model_dir),
        model=facts,
        buffer_address=address,
        router_url=_url(cluster, "router") if engines else None,
        engines=engines,
        services={n: f"http://{cluster.address_of(n)}:{p}" for n, p in ports.items()},
        master_address=cluster.address_of("learner-0"),
        master_port=cluster.reserve_port("learner-0"),
        collective_address=cluster.address_of("learner-0"),
        keys_dir=str(keys_dir) if keys_dir else None,
    )
    env = _CPU_ENV if device == "cpu" else {}
    orders = [_engine_order(config, run, spec, engine, device) for engine in engines]
    orders += [role_order(run, f"learner-{r}", env) for r in range(config.num_learner_ranks)]
    orders += [role_order(run, "buffer", env)]
    orders += [
        ProcessOrder(
            n, service_command(s, cluster.address_of(n), ports[n]), dict(_CPU_ENV), run.log(n)
        )
        for n, s in services.items()
    ]
    orders += [role_order(run, f"worker-{i}", env) for i in range(config.num_agent_workers)]
    ready = {e.name: f"{e.url}/health" for e in engines}
    ready |= {n: spec.services[n] + s.ready_path for n, s in services.items()}
    if spec.router_url is not None:
        orders += [_router_order(config, run, cluster, spec.router_url)]
        ready["router"] = f"{spec.router_url}/liveness"
    return spec, orders, ready


def _url(cluster: Cluster, name: str) -> str:
    return f"http://{cluster.address_of(name)}:{cluster.reserve_port(name)}"


def _engine_order(
    config: RunConfig, run: RunDir, spec: RunSpec, engine: EngineAddress, device: Device
) -> ProcessOrder:
    command = engine_command(
        model_path=spec.model_dir,
        host=_host(engine.url),
        port=_port(engine.url),
        name=engine.name,
        device=device,
        dtype="float32" if device == "cpu" else "auto",
        extra={"tp_size": config.rollout_num_gpus_per_engine, **config.sglang},
    )
    return ProcessOrder(command.name, command.argv, command.env, run.log(command.name))


def _router_order(config: RunConfig, run: RunDir, cluster: Cluster, url: str) -> ProcessOrder:
    command = router_command(
        host=_host(url),
        port=_port(url),
        prometheus_port=cluster.reserve_port("router"),
        turn_timeout_s=config.turn_timeout_s,
        extra=config.router,
    )
    return ProcessOrder(command.name, command.argv, command.env, run.log(command.name))


def _host(url: str) -> str:
    return str(urlsplit(url).hostname)


def _port(url: str) -> int:
    port = urlsplit(url).port
    assert port is not None
    return port
