"""Which process runs where: a pure plan, and the Ray side that carries it out.

    CPU:   one host on the driver's node runs everything
    CUDA:  one host per learner rank and per engine with its devices, one without for the rest
    CUDA, --colocate:  one host per engine, with the learner ranks that have its devices too

Ray chooses nodes and devices (a host actor asks for what its slot needs) and nothing else.
"""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from agentrl.cluster.host import ExitNotice, ProcessHost, ProcessOrder
from agentrl.cluster.own_ray import join_ray, own_ray, patient_start
from agentrl.cluster.signals import in_turns
from agentrl.config.device import LOOK_S, DeviceFacts, look
from agentrl.config.run import RunConfig
from agentrl.errors import EnvironmentSetupError, InfrastructureError

__all__ = ["Cluster", "Slot", "plan_slots", "ray_options"]

_LOG = logging.getLogger(__name__)
_PLACE_S = 300.0
_OBJECT_STORE_BYTES = 80 * 1024**2
#: Characters of a folder that leave room for the paths of Ray's sockets; a longer one is not used.
_MAX_FOLDER = 107 - len("/session_2026-01-01_00-00-00_000000_1000000/sockets/plasma_store")


class Slot(msgspec.Struct, frozen=True):
    """A host's share of a node: its name, devices, and the processes that belong to it."""

    name: str
    num_gpus: int
    processes: tuple[str, ...]


def plan_slots(config: RunConfig, num_gpus: int, services: Sequence[str]) -> list[Slot]:
    """Slots of a run that may take `num_gpus` devices in all; none on the CPU."""
    learners = config.learner_names
    engines = config.started_engines
    rest = ("buffer", *(["router"] if config.num_engines else []), *config.worker_names, *services)
    if config.plays_only:  # what stands in for a learner needs no device
        learners, rest = [], (*learners, *rest)
    if num_gpus == 0:
        return [Slot("host", 0, (*engines, *learners, *rest))]
    if config.colocate:
        return _shared(config, num_gpus, learners, engines, rest)
    needed = len(learners) + len(engines) * config.rollout_num_gpus_per_engine
    if needed > num_gpus:
        raise EnvironmentSetupError(
            f"{needed} GPUs are needed ({len(learners)} learner ranks + {len(engines)} engines x "
            f"{config.rollout_num_gpus_per_engine}) and the cluster has {num_gpus}; lower "
            "--actor-num-gpus-per-node or --rollout-num-gpus, or give --device cpu"
        )
    slots = [Slot("host", 0, rest)]
    slots += [Slot(name, 1, (name,)) for name in learners]
    slots += [Slot(name, config.rollout_num_gpus_per_engine, (name,)) for name in engines]
    return slots


def _shared(
    config: RunConfig,
    num_gpus: int,
    learners: Sequence[str],
    engines: Sequence[str],
    rest: tuple[str, ...],
) -> list[Slot]:
    """Engines on the first devices of the learner: rank r has device r modulo the size of an engine
    in its slot, as it finds by itself. Ranks beyond the engines have slots of their own."""
    size = config.rollout_num_gpus_per_engine
    needed = max(len(learners), len(engines) * size)
    if needed > num_gpus:
        raise EnvironmentSetupError(
            f"{needed} GPUs are needed ({len(learners)} learner ranks, and on the same devices "
            f"{len(engines)} engines x {size}) and the cluster has {num_gpus}; lower "
            "--actor-num-gpus-per-node or --rollout-num-gpus, or give --device cpu"
        )
    slots = [Slot("host", 0, rest)]
    for index, engine in enumerate(engines):
        mine = learners[index * size : (index + 1) * size]
        slots.append(Slot(engine, size, (engine, *mine)))
    alone = learners[len(engines) * size :]
    return slots + [Slot(name, 1, (name,)) for name in alone]


def ray_options(address: str | None, folder: Path) -> dict[str, Any]:
    """What Ray is told: the cluster at `address`, or one of the run's own with its sockets and logs
    in `folder`. RAY_ADDRESS in the environment may be meant for other programs: it counts only for
    the address `auto`."""
    if address is not None:
        return {"address": address}
    options = {
        "address": "local",
        "include_dashboard": False,
        "object_store_memory": _OBJECT_STORE_BYTES,
    }
    if len(str(folder)) <= _MAX_FOLDER:
        options["_temp_dir"] = str(folder)
    return options


class Cluster:
    """A Ray cluster with one host per slot; a local one is started when no address is given, with
    its sockets and logs in `folder`."""

    def __init__(self, address: str | None, folder: Path) -> None:
        self._address = address
        self._folder = folder
        self._hosts: dict[str, Any] = {}
        self._slot_of: dict[str, str] = {}
        self._resources = ExitStack()
        self._environment: Mapping[str, str | None] = {}

    def __enter__(self) -> "Cluster":
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if self._address is None:
            self._environment = self._resources.enter_context(own_ray(self._folder))
        else:
            join_ray()
        try:
            self._connect()
        except BaseException:
            self._resources.close()
            raise
        return self

    def _connect(self) -> None:
        import ray

        try:
            with patient_start():
                ray.init(
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    configure_logging=False,
                    **ray_options(self._address, self._folder),
                )
        except Exception as error:  # Ray raises a bare one when a node of its own does not start
            where = self._address or "this machine"
            raise EnvironmentSetupError(
                f"Ray cannot be used at {where} (--ray-address): {error}\n  A very busy machine "
                "may be too slow for Ray's own deadlines: try again when it is less so"
            ) from error

    def __exit__(self, *_: object) -> None:
        import ray

        try:
            ray.shutdown()
        finally:
            self._resources.close()

    def num_gpus(self) -> int:
        """Devices of the whole cluster."""
        import ray

        return int(ray.cluster_resources().get("GPU", 0))

    def device_facts(self, check: Callable[[], None]) -> DeviceFacts:
        """What the Python of a node with GPUs could do with them. `check` is called meanwhile, and
        may raise."""
        import ray

        if not (num_gpus := self.num_gpus()):
            return DeviceFacts("Ray", 0)
        task = ray.remote(look).options(num_cpus=0, num_gpus=1, max_retries=0).remote
        asked = [task(num_gpus, "Ray")]
        try:
            facts: DeviceFacts = self._wait_for(asked, LOOK_S, check)[0]
        except ray.exceptions.RayError as error:
            raise EnvironmentSetupError(
                f"Ray sees {num_gpus} GPUs, and none of them could be asked what it can do within "
                f"{LOOK_S:g} s: {error}\n  --device cpu does without them"
            ) from error
        return facts

    def place(self, slots: Sequence[Slot], check: Callable[[], None]) -> None:
        """Create the hosts; waits until Ray has given each its place (at most 5 min). `check` is
        called meanwhile, and may raise."""
        import ray

        actor = ray.remote(ProcessHost)
        for slot in slots:
            host = actor.options(
                name=None, num_cpus=0, num_gpus=slot.num_gpus, max_concurrency=8, max_restarts=0
            ).remote(self._environment)
            self._hosts[slot.name] = host
            self._slot_of |= dict.fromkeys(slot.processes, slot.name)
        nodes = [host.node.remote() for host in self._hosts.values()]
        try:
            found = self._wait_for(nodes, _PLACE_S, check)
        except ray.exceptions.RayError as error:
            raise EnvironmentSetupError(
                f"Ray found no place for {', '.join(slot.name for slot in slots)} within "
                f"{_PLACE_S:g} s: {error}"
            ) from error
        for slot, (address, pid) in zip(slots, found, strict=True):
            _LOG.info("slot %s on %s (pid %s): %s", slot.name, address, pid, slot.processes)

    def _wait_for(
        self, asked: Sequence[Any], timeout_s: float, check: Callable[[], None]
    ) -> list[Any]:
        """The answers of Ray. Raises what they raise, and GetTimeoutError."""
        import ray

        def are_there(turn_s: float) -> bool:
            return not ray.wait(asked, num_returns=len(asked), timeout=turn_s)[1]

        answers = ray.get(asked, timeout=timeout_s if in_turns(are_there, timeout_s, check) else 0)
        return list(answers)

    def address_of(self, process: str) -> str:
        """Network address of the node that runs `process`; loopback when there is but one."""
        if self._address is None:
            return "127.0.0.1"
        return str(self._call(self._host(process).node.remote())[0])

    def reserve_port(self, process: str) -> int:
        """A free port on the node that runs `process`."""
        return int(self._call(self._host(process).reserve_ports.remote(1))[0])

    def write_file(self, path: str, data: bytes) -> None:
        """Write a private file on every node of the run."""
        for host in self._hosts.values():
            self._call(host.write_file.remote(path, data))

    def start(self, order: ProcessOrder) -> int:
        """Start a process on its slot; returns its pid."""
        return int(self._call(self._host(order.name).start.remote(order)))

    def signal(self, process: str, number: int, pid: int | None = None) -> bool:
        """Send a signal to a process, with `pid` to none but that one. Whether it was sent."""
        return bool(self._call(self._host(process).signal.remote(process, number, pid)))

    def stop(self, processes: Sequence[str] | None, grace_s: float) -> None:
        """Stop processes (None: all) and wait until they have ended. Raises InfrastructureError
        that names those that did not; the others have."""
        names = None if processes is None else list(processes)
        stops = {slot: host.stop.remote(names, grace_s) for slot, host in self._hosts.items()}
        left = []
        for slot, stop in stops.items():
            try:
                self._call(stop, grace_s + 15)
            except InfrastructureError as error:
                left.append(str(getattr(error, "cause", error)))  # without Ray's own words
            except Exception:
                # The processes of a host that is gone went with it; the others must still end.
                _LOG.exception("slot %s could not be stopped", slot)
        if left:
            raise InfrastructureError("; ".join(left))

    def processes(self) -> list[str]:
        """Names of the processes that belong to the placed slots, running or not."""
        return list(self._slot_of)

    def slots(self) -> list[str]:
        """Names of the placed slots."""
        return list(self._hosts)

    def next_exits(self, slot: str, timeout_s: float) -> list[ExitNotice]:
        """Processes of `slot` that ended; waits up to `timeout_s` for one."""
        notices = self._call(self._hosts[slot].next_exits.remote(timeout_s), timeout_s + 10)
        return list(notices)

    def _host(self, process: str) -> Any:
        return self._hosts[self._slot_of[process]]

    @staticmethod
    def _call(reference: Any, timeout_s: float = 60.0) -> Any:
        import ray

        return ray.get(reference, timeout=timeout_s)
