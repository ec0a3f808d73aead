"""The processes of a run before any is started: addresses, commands, and their order."""

import os
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from agentrl.cluster.engine_parts import engine_of, part_of
from agentrl.cluster.host import ProcessOrder
from agentrl.cluster.interfaces import INTERFACES
from agentrl.cluster.kinds import KINDS
from agentrl.cluster.layout import RunDir, role_order
from agentrl.cluster.placement import Cluster
from agentrl.cluster.port_plan import num_push_ports
from agentrl.cluster.services import copy_orders, service_command
from agentrl.cluster.spec import CopyAddress, RunSpec, read_model_facts
from agentrl.config.device import Device
from agentrl.config.device_defaults import for_device
from agentrl.config.engine_groups import PlannedEngine
from agentrl.config.engine_settings import own_settings
from agentrl.config.env_vars import env_vars, train_env_vars
from agentrl.config.eval_sets import asks_for_stops, engine_context, eval_sets
from agentrl.config.external_engines import engine_urls, external_key
from agentrl.config.external_router import external_router_url
from agentrl.config.run import RunConfig
from agentrl.envs.env import ServiceSpec
from agentrl.models.registry import open_model
from agentrl.models.routes import routes_of
from agentrl.serving.key import make_key
from agentrl.serving.launch import EnginePart, engine_command, router_command
from agentrl.serving.nccl import nccl_environment
from agentrl.types import EngineAddress
from agentrl.wire.keys import make_keys

__all__ = ["plan_processes", "url_of"]

#: Processes that have no GPU of their own see none: torch and SGLang would use one, and JAX takes
#: most of each GPU that it sees as soon as somebody imports it.
_NO_GPUS = {"CUDA_VISIBLE_DEVICES": ""}
_CPU_ENV = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
#: megatron-core overlaps communication with computation by the order of one queue of launches.
_CUDA_LEARNER = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
#: Which interface collectives meet at. Without it Gloo takes the address that the host's name has:
#: others may reach it, or on a cluster (where names often mean loopback) nobody can.


def plan_processes(
    config: RunConfig,
    run: RunDir,
    cluster: Cluster,
    services: dict[str, ServiceSpec],
    device: Device,
) -> tuple[RunSpec, list[ProcessOrder]]:
    """What every process is told, and their orders as they are to be started. This writes the key
    of engines and router, and on more than one slot those of peers."""
    config = for_device(config, device)
    model_dir = Path(str(config.hf_checkpoint)).resolve()
    sets = {} if config.loads_rollouts else eval_sets(config)
    context = engine_context(config, sets) if config.worker_names else None
    facts = read_model_facts(model_dir, context)
    if config.replays_engine_routes:
        architecture = open_model(model_dir, config.model_family).architecture
        facts = msgspec.structs.replace(facts, routes=routes_of(architecture))
    started = {name: url_of(cluster, name) for name in config.started_engines}
    urls = started.values() or engine_urls(config)
    engines = [
        _address(cluster, planned, url) for planned, url in zip(config.engines, urls, strict=False)
    ]
    apart = [_address(cluster, e, url_of(cluster, e.name)) for e in config.eval_engines]
    once = {name: service for name, service in services.items() if service.per == "run"}
    ports = {name: cluster.reserve_port(name) for name in once}
    copies = cluster.copies() if len(once) < len(services) else []
    keys_dir = None
    address = f"ipc://{run.private}/buffer.sock"
    if len(cluster.slots()) > 1:
        keys_dir = run.private / "keys"
        make_keys(keys_dir)
        port = cluster.reserve_port("buffer")
        address = f"tcp://{cluster.address_of('buffer')}:{port}"
    engine_key_file = run.private / "engine.key"
    make_key(engine_key_file, external_key(config))
    router = url_of(cluster, "router") if config.starts_router else external_router_url(config)
    spec = RunSpec(
        config=config,
        run_dir=str(run.path),
        model_dir=str(model_dir),
        model=facts,
        buffer_address=address,
        router_url=router,
        engines=engines,
        eval_engines=apart,
        eval_sets=list(sets.values()),
        services={n: f"http://{cluster.address_of(n)}:{p}" for n, p in ports.items()},
        copies={
            copy.process: CopyAddress(
                copy.service, url_of(cluster, copy.process), services[copy.service]
            )
            for copy in copies
        },
        copies_used={name: cluster.copies_for(name) for name in config.worker_names if copies},
        master_address=cluster.address_of("learner-0"),
        master_port=cluster.reserve_port("learner-0"),
        collective_address=cluster.address_of("learner-0"),
        push_ports=[cluster.reserve_port("learner-0") for _ in range(num_push_ports(config))],
        keys_dir=str(keys_dir) if keys_dir else None,
        engine_key_file=str(engine_key_file),
    )
    env = _CPU_ENV if device == "cpu" else {}
    orders = [
        _engine_order(config, run, spec, place, planned, device, part)
        for engine, planned in zip(engines, config.engines, strict=True)
        if started
        for place, part in _parts(cluster, engine)
    ]
    for engine, planned in zip(apart, config.eval_engines, strict=True):
        order = _engine_order(config, run, spec, engine, planned, device, None)
        orders.append(msgspec.structs.replace(order, kind="eval-engine"))
    orders += [_learner_order(config, run, name, device) for name in config.learner_names]
    meeting = _on_loopback if config.ray_address is None else _on_the_nodes_interface
    orders = [meeting(order) for order in orders]
    orders += [role_order(run, "buffer", "buffer", env)]
    orders += [
        ProcessOrder(
            name,
            service_command(service, cluster.address_of(name), ports[name]),
            "service",
            dict(_CPU_ENV),
            run.log(name),
            ready_url=spec.services[name] + service.ready_path,
        )
        for name, service in once.items()
    ]
    orders += copy_orders(copies, spec.copies, _CPU_ENV, run.log)
    orders += [role_order(run, "worker", name, env) for name in config.worker_names]
    if config.starts_router:
        orders += [_router_order(config, run, cluster, spec)]
    asking = {name for name, service in once.items() if service.gpus}
    asking |= {copy.process for copy in copies if services[copy.service].gpus}
    orders = [
        order
        if device == "cuda" and (KINDS[order.kind].has_devices or order.name in asking)
        else msgspec.structs.replace(order, env=order.env | _NO_GPUS)
        for order in orders
    ]
    if config.ray_address is not None:
        orders = [_as_here(order) for order in orders]
    return spec, [_with_own(config, order) for order in orders]


def _with_own(config: RunConfig, order: ProcessOrder) -> ProcessOrder:
    """With the variables of the user, who knows better than a default."""
    own = env_vars(config)
    if order.kind == "learner":
        own |= train_env_vars(config)
    return msgspec.structs.replace(order, env=order.env | own)


def _on_loopback(order: ProcessOrder) -> ProcessOrder:
    return msgspec.structs.replace(order, env=order.env | dict.fromkeys(INTERFACES[:2], "lo"))


def _on_the_nodes_interface(order: ProcessOrder) -> ProcessOrder:
    return msgspec.structs.replace(order, interface_variables=INTERFACES)


def _as_here(order: ProcessOrder) -> ProcessOrder:
    """Started in the program's own folder, and finding the modules that it finds."""
    path = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    return msgspec.structs.replace(
        order, folder=str(Path.cwd()), env_defaults=path | order.env_defaults
    )


def url_of(cluster: Cluster, name: str) -> str:
    """Where a server is to listen: a port that is reserved by this, on the node that runs it."""
    return f"http://{cluster.address_of(name)}:{cluster.reserve_port(name)}"


def _address(cluster: Cluster, planned: PlannedEngine, url: str) -> EngineAddress:
    """Where an engine is; one that prefills has a further port, at which it hands caches on."""
    port = cluster.reserve_port(planned.name) if planned.kind == "prefill" else None
    return EngineAddress(planned.name, url, planned.kind, planned.size, port)


def _learner_order(config: RunConfig, run: RunDir, name: str, device: Device) -> ProcessOrder:
    if device == "cpu" or config.plays_only:
        return role_order(run, "learner", name, _CPU_ENV)
    nccl = nccl_environment(config.sglang)
    order = role_order(run, "learner", name, nccl.forced)
    return msgspec.structs.replace(order, env_defaults=_CUDA_LEARNER | nccl.defaults)


def _parts(
    cluster: Cluster, engine: EngineAddress
) -> list[tuple[EngineAddress, EnginePart | None]]:
    """The processes of an engine, with their addresses: one, or one on each of several nodes."""
    # each part has a slot of its name
    names = [slot for slot in cluster.slots() if engine_of(slot) == engine.name]
    if len(names) <= 1:
        return [(engine, None)]
    meets_at = f"{cluster.address_of(engine.name)}:{cluster.reserve_port(engine.name)}"
    urls = {name: engine.url if name == engine.name else url_of(cluster, name) for name in names}
    return [
        (
            msgspec.structs.replace(engine, name=name, url=url),
            part_of(name, len(names), meets_at),
        )
        for name, url in urls.items()
    ]


def _engine_order(
    config: RunConfig,
    run: RunDir,
    spec: RunSpec,
    engine: EngineAddress,
    planned: PlannedEngine,
    device: Device,
    part: EnginePart | None,
) -> ProcessOrder:
    lends = config.colocate and config.offload_rollout and device == "cuda"
    command = engine_command(
        model_path=spec.model_dir,
        host=_host(engine.url),
        port=_port(engine.url),
        name=engine.name,
        device=device,
        dtype="float32" if device == "cpu" else "auto",
        key_file=spec.engine_key_file,
        part=part,
        kind=engine.kind,
        bootstrap_port=engine.bootstrap_port,
        is_exact=config.computes_exactly,
        extra={
            "tp_size": planned.size,
            "enable_return_routed_experts": config.replays_engine_routes,
            "skip_tokenizer_init": not asks_for_stops(config, spec.eval_sets),
            **({"enable_memory_saver": True} if lends else {}),
            **config.sglang,
            **own_settings(planned.overrides),
        },
    )
    return ProcessOrder(
        command.name,
        command.argv,
        "engine",
        command.env,
        run.log(command.name),
        scratch=str(run.private / command.name),
        # SIGTERM reaches its children too: SGLang calls that a crash and waits for diagnostics.
        expendable=True,
        # only the first part of an engine speaks HTTP
        ready_url="" if part and part.number else f"{engine.url}/health",
    )


def _router_order(config: RunConfig, run: RunDir, cluster: Cluster, spec: RunSpec) -> ProcessOrder:
    url = str(spec.router_url)
    command = router_command(
        host=_host(url),
        port=_port(url),
        key_file=spec.engine_key_file,
        prometheus_port=cluster.reserve_port("router"),
        turn_timeout_s=config.turn_timeout_s,
        has_prefill_apart=config.has_prefill_apart,
        extra=config.router,
    )
    return ProcessOrder(
        command.name,
        command.argv,
        "router",
        command.env,
        run.log(command.name),
        ready_url=f"{url}/liveness",
    )


def _host(url: str) -> str:
    return str(urlsplit(url).hostname)


def _port(url: str) -> int:
    port = urlsplit(url).port
    assert port is not None
    return port
