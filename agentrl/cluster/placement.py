"""`Cluster`: the Ray side of a plan of slots (`slots.py`).

Ray chooses nodes and devices, and nothing else: one placement group holds all bundles, packed on as
few nodes as have room; a host actor is created in its bundle, or on its node. Which host serves
which slot is decided when all have said where they are.
"""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Literal

from agentrl.cluster.asked_hosts import AskedHosts
from agentrl.cluster.host import ExitNotice, ProcessHost, ProcessOrder
from agentrl.cluster.host_calls import answer, is_silent, on_slot, patiently, until_done
from agentrl.cluster.keepers import Keepers
from agentrl.cluster.kinds import ProcessKind
from agentrl.cluster.no_place import answering, free_of, no_answer, no_place
from agentrl.cluster.node_facts import NodeFacts, facts_of
from agentrl.cluster.own_ray import join_ray, own_ray, patient_start, ray_options
from agentrl.cluster.ports import NodePorts
from agentrl.cluster.ray_calls import RayCalls, calls_ray
from agentrl.cluster.ray_nodes import nodes_there
from agentrl.cluster.service_copies import ServiceCopy
from agentrl.cluster.signals import in_turns
from agentrl.cluster.slots import (
    NodePlace,
    Slot,
    Supply,
    bundle_sizes,
    bundles_of,
    in_order,
)
from agentrl.config.device import Device, DeviceFacts, look
from agentrl.errors import EnvironmentSetupError, InfrastructureError, SlotLostError

__all__ = ["Cluster"]

_LOG = logging.getLogger(__name__)


class Cluster:
    """A Ray cluster with one host per slot; a local one is started when no address is given, with
    its sockets and logs in `folder`. `ports`: those that processes may listen on (None: any).
    `call_s`: --call-timeout-s, which a host may take for what it does at once."""

    def __init__(
        self, address: str | None, folder: Path, ports: range | None = None, call_s: float = 60.0
    ) -> None:
        self._address, self._call_s = address, call_s
        self._folder = folder
        self._ports = NodePorts(ports)
        self.ray_calls = RayCalls()
        self._hosts: dict[str, Any] = {}
        self._places: dict[str, NodePlace] = {}
        self._slot_of: dict[str, str] = {}
        self._kind_of: dict[str, ProcessKind] = {}
        #: By slot, the one whose place it has taken, and how Ray was asked for that.
        self._taken: dict[str, Slot] = {}
        self._group: Any = None
        self._device = "CPU"
        #: Hosts of lost slots that Ray has been asked for.
        self._asked = AskedHosts()
        self._files: dict[str, bytes] = {}
        #: By slot, how many ends its host has told of; another host counts anew.
        self._heard: dict[str, int] = {}
        self._resources = ExitStack()
        self._environment: Mapping[str, str | None] = {}

    def __enter__(self) -> "Cluster":
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if self._address is None:
            self._environment = self._resources.enter_context(own_ray(self._folder))
        else:
            join_ray(self._address)
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
            self.ray_calls.end()
            for host in (*self._hosts.values(), *self._asked.hosts):
                ray.kill(host)  # threads that wait for its answer get an error
            if not self.ray_calls.wait():
                _LOG.warning("a thread still waits for Ray, which is shut down")
            ray.shutdown()
        finally:
            self._resources.close()

    def num_gpus(self) -> int:
        """GPUs of the whole cluster."""
        import ray

        return int(ray.cluster_resources().get("GPU", 0))

    def supply(self, device: Device) -> Supply:
        """What the nodes have for models on `device`."""
        resource: Literal["GPU", "CPU"] = "GPU" if device == "cuda" else "CPU"
        nodes = nodes_there()
        if device == "cpu" and len(nodes) == 1:
            return Supply()
        return Supply(resource, tuple(int(n["Resources"].get(resource, 0)) for n in nodes))

    def device_facts(self, check: Callable[[], None], timeout_s: float) -> DeviceFacts:
        """What the Python of a node with GPUs could do with them. `check` is called meanwhile, and
        may raise. `timeout_s`: --start-timeout-s, as a process of it is started for that."""
        import ray

        if not (num_gpus := self.num_gpus()):
            return DeviceFacts("Ray", 0)
        task = ray.remote(look).options(num_cpus=0, num_gpus=1, max_retries=0).remote
        asked = [task(num_gpus, "Ray", timeout_s)]
        try:
            facts: DeviceFacts = self._wait_for(asked, timeout_s, check)[0]
        except ray.exceptions.RayError as error:
            raise no_answer(error, num_gpus, timeout_s) from error
        return facts

    def place(
        self,
        slots: Sequence[Slot],
        device: Literal["GPU", "CPU"],
        check: Callable[[], None],
        timeout_s: float,
    ) -> None:
        """Create the hosts; waits up to `timeout_s` until Ray has given each its place. `check` is
        called meanwhile, and may raise. Raises EnvironmentSetupError with what kept Ray from it."""
        import ray

        names = ", ".join(slot.name for slot in slots)
        sizes = bundle_sizes(slots)
        bundles = f" in bundles of {', '.join(map(str, sizes))} {device}s" if sizes else ""
        self._device = device
        # What copies of services need of their nodes, before bundles take it.
        first = {s.name: self._host_for(s) for s in slots if s.bundle is None and s.needs_room}
        try:
            if first:
                self._wait_for([each.place.remote() for each in first.values()], timeout_s, check)
            self._group = self._reserve(bundles_of(slots, device), check, timeout_s)
            hosts = [first.get(slot.name) or self._host_for(slot) for slot in slots]
            places = self._wait_for([host.place.remote() for host in hosts], timeout_s, check)
        except ray.exceptions.RayError as error:
            raise no_place(error, names + bundles, timeout_s, free_of(device)) from error
        for slot, index in zip(slots, in_order(slots, places), strict=True):
            self._hosts[slot.name], self._places[slot.name] = hosts[index], places[index]
            self._taken[slot.name] = slots[index]
            self._slot_of |= dict.fromkeys(slot.processes, slot.name)
            self._kind_of |= slot.processes
            _LOG.info("slot %s on %s: %s", slot.name, places[index], ", ".join(slot.processes))
        self._asked.keepers = Keepers(slot.name for slot in slots if slot.copies)

    def places(self) -> dict[str, NodePlace]:
        """Where each slot is."""
        return dict(self._places)

    def _reserve(
        self, bundles: list[dict[str, int]], check: Callable[[], None], timeout_s: float
    ) -> Any:
        """A placement group of these bundles; None for none."""
        from ray.util.placement_group import placement_group

        if not bundles:
            return None
        group = placement_group(bundles, strategy="PACK")
        self._wait_for([group.ready()], timeout_s, check)
        return group

    @calls_ray
    def place_again(self, slot: str, timeout_s: float) -> NodePlace | None:
        """Ask Ray for a place for a lost slot, and write there what was written for all nodes; None
        if it has given none after `timeout_s`. Ray puts a bundle where there is room for all of
        it; a slot of agent workers goes where `Keepers` says. Raises EnvironmentSetupError for a
        node that cannot be written to; another may be given next."""
        import ray

        asked = self._asked.ask(slot, self._taken, self._places, self._host_for)
        if not ray.wait([asked.answer], timeout=timeout_s)[0]:
            self._asked.late(slot, self._taken[slot], self._call_s)
            return None
        try:
            place: NodePlace = ray.get(asked.answer)
            with on_slot(slot, place.address, self._call_s):
                for path, data in self._files.items():
                    answer(asked.host.write_file.remote(path, data), self._call_s)
        except EnvironmentSetupError:
            self._asked.failed(slot)
            raise
        except (SlotLostError, ray.exceptions.RayError) as error:  # or it cannot start there
            _LOG.warning("no place for %s yet: %s", slot, error)
            self._asked.failed(slot)
            return None
        self._asked.given(slot)
        if not (self.copies(slot) and place.node == self._places[slot].node):
            self._ports.take_back(self.processes(slot))
        self._hosts[slot], self._places[slot] = asked.host, place
        self._heard.pop(slot, None)
        _LOG.info("slot %s on %s", slot, place)
        return place

    def _host_for(self, slot: Slot, node: str | None = None) -> Any:
        import ray

        options = {
            "num_cpus": slot.num_cpus + (slot.size if self._device == "CPU" else 0),
            "num_gpus": slot.size if self._device == "GPU" else 0,
            "scheduling_strategy": self._where(slot, node),
            "max_concurrency": 8,
            "max_restarts": 0,
        }
        return ray.remote(ProcessHost).options(**options).remote(self._environment)

    def _where(self, slot: Slot, node: str | None) -> Any:
        """In its bundle, or on its node, unless that is to be another."""
        from ray.util import scheduling_strategies as strategies

        if slot.bundle is not None:
            return strategies.PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=slot.bundle
            )
        if node is None:
            assert slot.node is not None
            node = nodes_there()[slot.node]["NodeID"]
        return strategies.NodeAffinitySchedulingStrategy(node, soft=False)

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
        return self._places[self._slot_of[process]].address

    @calls_ray
    def reserve_port(self, process: str) -> int:
        """A free port on the node that runs `process`. Raises SlotLostError, and
        EnvironmentSetupError where no port is free."""
        slot = self._slot_of[process]
        with self._there(slot):
            find = partial(until_done, slot, self._call_s, self._hosts[slot].free_ports)
            return self._ports.give(process, self._places[slot], find)

    @calls_ray
    def facts(
        self, slot: str, paths: Sequence[str], places: Sequence[tuple[str, str]]
    ) -> NodeFacts:
        """What the node of a slot is like, as `facts_here`. Raises SlotLostError, and
        EnvironmentSetupError where the node cannot say."""
        with self._there(slot), answering(self._call_s):
            told = patiently(self._call_s, self._hosts[slot].facts, list(paths), list(places))
        return facts_of(told)

    @calls_ray
    def write_file(self, path: str, data: bytes) -> None:
        """Write a private file on every node of the run that is there, or comes later; on one that
        hangs as soon as it does no more. Raises EnvironmentSetupError for one that refuses it."""
        self._files[path] = data
        for slot, host in self._hosts.items():
            try:
                with self._there(slot):
                    patiently(self._call_s, host.write_file, path, data)
            except SlotLostError as error:
                _LOG.warning("%s has not been written there yet: %s", path, error)

    @calls_ray
    def start(self, order: ProcessOrder) -> int:
        """Start a process on its slot, however long its node hangs; returns its pid. Raises
        SlotLostError."""
        slot = self._slot_of[order.name]
        with self._there(slot):
            return int(until_done(slot, self._call_s, self._hosts[slot].start, order))

    @calls_ray
    def signal(self, process: str, number: int, pid: int | None = None) -> bool:
        """Send a signal to a process, with `pid` to none but that one. Whether it was sent, as far
        as its node says. Raises SlotLostError."""
        slot = self._slot_of[process]
        with self._there(slot), is_silent():
            asked = self._hosts[slot].signal.remote(process, number, pid)
            return bool(answer(asked, self._call_s))
        return False

    @calls_ray
    def stop(self, processes: Sequence[str] | None, grace_s: float) -> None:
        """Stop processes (None: all) and wait until they have ended. Raises InfrastructureError
        that names those that did not; the others have."""
        names = None if processes is None else list(processes)
        stops = {slot: host.stop.remote(names, grace_s) for slot, host in self._hosts.items()}
        left = []
        for slot, stop in stops.items():
            try:
                answer(stop, grace_s + 15)
            except InfrastructureError as error:
                left.append(str(getattr(error, "cause", error)))  # without Ray's own words
            except Exception:
                # The processes of a host that is gone went with it; the others must still end.
                _LOG.exception("slot %s could not be stopped", slot)
        if left:
            raise InfrastructureError("; ".join(left))

    def processes(self, slot: str | None = None) -> list[str]:
        """Names of the processes that belong to a slot (None: to any), running or not."""
        return [name for name, its in self._slot_of.items() if slot in (None, its)]

    def kinds(self, slot: str) -> dict[str, ProcessKind]:
        """The kinds of the processes that belong to a slot, by their names."""
        return {name: self._kind_of[name] for name in self.processes(slot)}

    def copies(self, slot: str | None = None) -> list[ServiceCopy]:
        """Copies of services that belong to a slot (None: to any), running or not."""
        return [
            copy for name, its in self._taken.items() if slot in (None, name) for copy in its.copies
        ]

    def copies_for(self, worker: str) -> list[str]:
        """Processes of the copies that an agent worker uses: those on its node."""
        return [copy.process for copy in self.copies(self._asked.keepers.of(self._slot_of[worker]))]

    def port_held(self, process: str) -> int | None:
        """The port that a process was given on the node where it is, if it was."""
        return self._ports.held(process, self._places[self._slot_of[process]])

    def slots(self) -> list[str]:
        """Names of the placed slots."""
        return list(self._hosts)

    @calls_ray
    def next_exits(self, slot: str, timeout_s: float) -> list[ExitNotice]:
        """Processes of `slot` that ended, each told once; waits up to `timeout_s` for one. Raises
        SlotLostError when the slot itself has: its node, or Ray there. One thread at a time asks
        for a slot."""
        told: list[ExitNotice] = []
        with self._there(slot), is_silent():  # Ray asks a silent node again, and decides
            asked = self._hosts[slot].next_exits.remote(self._heard.get(slot, 0), timeout_s)
            told = answer(asked, timeout_s + 10)
        if told:
            self._heard[slot] = told[-1].number
        return told

    def _there(self, slot: str) -> AbstractContextManager[None]:
        return on_slot(slot, self._places[slot].address, self._call_s)
