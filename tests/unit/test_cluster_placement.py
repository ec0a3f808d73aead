"""What Ray is asked for, and how long a place is waited for. Ray itself is a double here."""

import os
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentrl.cluster.host import ProcessOrder
from agentrl.cluster.launch import _stop
from agentrl.cluster.own_ray import ray_options
from agentrl.cluster.placement import Cluster
from agentrl.cluster.slots import NodePlace, Slot, Supply, plan_slots
from agentrl.config.run import RunConfig
from agentrl.errors import EnvironmentSetupError, SlotLostError


def test_a_run_without_an_address_has_a_cluster_of_its_own() -> None:
    """Ray would read RAY_ADDRESS where it is told no address, or `auto`."""
    options = ray_options(None, Path("/r"))
    assert options["address"] == "local"
    assert options["_temp_dir"] == "/r"
    assert "_temp_dir" not in ray_options(None, Path("/" + "r" * 100))


@pytest.mark.parametrize("address", ["auto", "10.0.0.1:6379"])
def test_a_cluster_that_runs_already_is_told_nothing_of_ours(address: str) -> None:
    assert ray_options(address, Path("/r")) == {"address": address}


class Words(Exception):
    """What Ray raises."""


class Late(Words, TimeoutError):
    """No answer in time."""


class FullRay:
    """Ray on a cluster that has no room; after `turns` it has, or it `raises`."""

    class exceptions:
        RayError = Words
        GetTimeoutError = Late

    def __init__(self, turns: int, *, raises: Exception | None = None) -> None:
        self._turns = turns
        self._raises = raises

    def remote(self, actor: object) -> Any:
        host = SimpleNamespace(place=SimpleNamespace(remote=lambda: "place"))
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda *_: host))

    def wait(self, nodes: list[str], num_returns: int, timeout: float) -> tuple[Any, Any]:
        assert timeout < 1
        self._turns -= 1
        return ([], nodes) if self._turns > 0 else (nodes, [])

    def get(self, places: list[str], timeout: float) -> list[NodePlace]:
        if self._raises is not None:
            raise self._raises
        return [NodePlace("10.0.0.1") for _ in places]

    def available_resources(self) -> dict[str, float]:
        return {"GPU": 3.0}

    def cluster_resources(self) -> dict[str, float]:
        return {"GPU": 8.0}


def test_a_ray_that_does_not_start_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Ray raises a bare Exception when a node of its own misses a deadline."""

    def init(**options: object) -> None:
        raise Exception("The current node timed out during startup")

    import_module("ray._private.services")  # what stands in for ray has no such part
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=init))
    with pytest.raises(EnvironmentSetupError, match=r"timed out during startup\n.*busy machine"):
        Cluster(None, tmp_path).__enter__()
    assert "RAY_AUTH_TOKEN_PATH" not in os.environ


SLOTS = [
    Slot("host", 0, {"buffer": "buffer"}),
    Slot("learner-0", 1, {"learner-0": "learner"}, bundle=0, node=None),
]


def place(monkeypatch: pytest.MonkeyPatch, ray: FullRay, check: Any = lambda: None) -> Cluster:
    cluster = cluster_on(ray, monkeypatch)
    cluster.place(SLOTS, "GPU", check, 77.0)
    return cluster


def cluster_on(ray: object, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """One whose bundles Ray reserves at once."""
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(Cluster, "_reserve", lambda *_: None)
    monkeypatch.setattr(Cluster, "_where", lambda *_: None)
    return Cluster(None, Path("/r"))


def test_hosts_that_have_their_places_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert place(monkeypatch, FullRay(3)).slots() == ["host", "learner-0"]


def test_a_wait_for_a_place_can_be_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def check() -> None:
        asked.append(1)
        if len(asked) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        place(monkeypatch, FullRay(10**9), check)


def test_hosts_without_a_place_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    said = r"host, learner-0 in bundles of 1 GPUs within 77 s \(3 of 8 GPUs are free\)"
    with pytest.raises(EnvironmentSetupError, match=f"no place for {said}.*--place-timeout-s"):
        place(monkeypatch, FullRay(3, raises=Late()))


def test_a_host_that_cannot_start_is_no_lack_of_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Ray says it where a node has no agentrl."""
    told = (
        "The actor died because of an error raised in its creation task, ray::ProcessHost\n"
        "The actor failed to import on the worker:\n\nTraceback (most recent call last):\n"
        "ModuleNotFoundError: No module named 'agentrl'\n"
    )
    with pytest.raises(EnvironmentSetupError) as error:
        place(monkeypatch, FullRay(3, raises=Words(told)))
    first, second = str(error.value).splitlines()
    assert "could not start what is to run host, learner-0 in bundles of 1 GPUs" in first
    assert first.endswith("on a node: ModuleNotFoundError: No module named 'agentrl'")
    assert "agentrl doctor --ray-address" in second
    assert "77 s" not in str(error.value)


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (Late(), "what it can do within 300 s\n"),
        (Words("a page\nImportError: libcuda"), "can do (ImportError: libcuda)\n"),
    ],
)
def test_gpus_that_cannot_be_asked_are_told_with_what_happened(
    monkeypatch: pytest.MonkeyPatch, raised: Exception, said: str
) -> None:
    ray = FullRay(1, raises=raised)
    cluster = cluster_on(ray, monkeypatch)
    with pytest.raises(EnvironmentSetupError) as error:
        cluster.device_facts(lambda: None, 300.0)
    assert said in str(error.value)


class StoppingRay:
    """Ray whose hosts stop their processes; `stages`: those that were asked to end while none of
    an earlier stage was still waited for."""

    def __init__(self, slots: list[Slot]) -> None:
        self._slots = iter(slots)
        self._running = {name for slot in slots for name in slot.processes}
        self._waited = 0
        self.stages: list[set[str]] = []

    def remote(self, actor: object) -> Any:
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=self._host))

    def _host(self, environment: object) -> Any:
        slot = next(self._slots)

        def stop(names: list[str] | None, grace_s: float) -> str:
            if self._waited == 0:
                self.stages.append(set())
            self._waited += 1
            chosen = set(slot.processes if names is None else names) & set(slot.processes)
            self.stages[-1] |= chosen & self._running
            self._running -= chosen
            return "stop"

        return SimpleNamespace(
            place=SimpleNamespace(remote=lambda: "place"), stop=SimpleNamespace(remote=stop)
        )

    def wait(self, nodes: list[str], num_returns: int, timeout: float) -> tuple[Any, Any]:
        return nodes, []

    def get(self, asked: Any, timeout: float) -> Any:
        if asked != "stop":
            return [NodePlace("10.0.0.1") for _ in asked]
        self._waited -= 1
        return {}


def test_engines_are_stopped_last_although_each_has_a_slot_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = RunConfig(actor_num_gpus_per_node=1, rollout_num_gpus=2)
    slots = plan_slots(config, Supply("GPU", (8,)), {"search": 0})
    ray = StoppingRay(slots)
    cluster = cluster_on(ray, monkeypatch)
    cluster.place(slots, "GPU", lambda: None, 60.0)
    kinds = {name: kind for slot in slots for name, kind in slot.processes.items()}
    assert [cluster.kinds(slot.name) for slot in slots] == [slot.processes for slot in slots]
    _stop(cluster, [ProcessOrder(name, (), kind) for name, kind in kinds.items()])
    engines = {"engine-0", "engine-1"}
    others = {name for slot in slots for name in slot.processes} - engines - {"learner-0"}
    assert ray.stages == [{"learner-0"}, others, engines]


def test_engines_share_the_devices_of_the_learner() -> None:
    config = RunConfig(
        colocate=True, actor_num_gpus_per_node=8, rollout_num_gpus_per_engine=2, num_agent_workers=1
    )
    batched = [(f"learner-{2 * i}", f"learner-{2 * i + 1}") for i in range(4)]
    host, *shared = plan_slots(config, Supply("GPU", (8,)), {"search": 0})
    assert [*host.processes] == ["buffer", "router", "worker-0", "search"]
    assert shared == [
        Slot(
            f"engine-{i}",
            2,
            {f"engine-{i}": "engine", **dict.fromkeys(ranks, "learner")},
            bundle=0,
            node=None,
        )
        for i, ranks in enumerate(batched)
    ]


@pytest.mark.parametrize(
    ("ranks", "devices", "slots"),
    [
        (2, 1, [("engine-0", 1, 2), ("learner-1", 1, 1)]),
        (1, 2, [("engine-0", 1, 2), ("engine-1", 1, 1)]),
    ],
)
def test_what_one_party_has_more_of_stands_alone(
    ranks: int, devices: int, slots: list[tuple[str, int, int]]
) -> None:
    config = RunConfig(colocate=True, actor_num_gpus_per_node=ranks, rollout_num_gpus=devices)
    planned = plan_slots(config, Supply("GPU", (2,)), {})[1:]
    assert [(slot.name, slot.size, len(slot.processes)) for slot in planned] == slots
    with pytest.raises(EnvironmentSetupError, match=r"2 GPUs are needed .* on the same devices"):
        plan_slots(config, Supply("GPU", (1,)), {})


class SilentRay:
    """Ray of which a node does not answer, or is gone: what each call raises, in turn."""

    class exceptions:
        class RayActorError(Exception):
            pass

        class ActorUnavailableError(RayActorError):
            pass

        class GetTimeoutError(Exception):
            pass

    def __init__(self, *raised: str) -> None:
        self._raised = list(raised)

    def get(self, reference: object, timeout: float) -> int:
        if self._raised:
            raise getattr(self.exceptions, self._raised.pop(0))
        return 7


def silent(ray: SilentRay, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A cluster with one process, whose node is `ray`'s."""
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr("agentrl.cluster.host_calls.SILENT_S", 0.0)
    call = SimpleNamespace(remote=lambda *_: "asked")
    cluster = Cluster("10.0.0.1:6379", Path("/r"))
    cluster._hosts["engine-0"] = SimpleNamespace(signal=call, start=call)
    cluster._places["engine-0"] = NodePlace("10.0.0.2")
    cluster._slot_of["engine-0"] = "engine-0"
    return cluster


class RoomyRay:
    """Ray that has no room at the first look. Hosts say where they are and remember their files; a
    node `fails` so many of them."""

    class exceptions:
        class RayError(Exception):
            pass

    def __init__(self, fails: int = 0) -> None:
        self.looks, self.fails = 0, fails
        self.files: dict[str, bytes] = {}

    def wait(self, asked: list[object], timeout: float) -> tuple[list[object], list[object]]:
        self.looks += 1
        return ([], asked) if self.looks == 1 else (asked, [])

    def get(self, asked: Any, timeout: float | None = None) -> Any:
        if self.fails:
            self.fails -= 1
            raise self.exceptions.RayError("its node is gone")
        return asked()


def test_a_lost_slot_takes_the_place_that_ray_gives_its_bundle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What had changed places with another when the run began keeps that other's bundle."""
    ray = RoomyRay(fails=1)
    monkeypatch.setitem(sys.modules, "ray", ray)
    cluster = Cluster("10.0.0.1:6379", Path("/r"))
    taken = Slot("engine-1", 2, {"engine-1": "engine"}, bundle=3, node=None)
    cluster._taken["engine-0"] = taken
    cluster._files["/spec"] = b"said"
    asked: list[tuple[Slot, str | None]] = []

    def host_for(slot: Slot, node: str | None) -> Any:
        asked.append((slot, node))
        write = SimpleNamespace(remote=lambda *file: lambda: ray.files.update([file]))
        place = SimpleNamespace(remote=lambda: lambda: NodePlace("10.0.0.7", "n7", ("0", "1")))
        return SimpleNamespace(place=place, write_file=write)

    monkeypatch.setattr(cluster, "_host_for", host_for)
    assert cluster.place_again("engine-0", 1.0) is None, "there is no room"
    assert cluster.place_again("engine-0", 1.0) is None, "the node that had room is gone"
    assert cluster.place_again("engine-0", 1.0) == NodePlace("10.0.0.7", "n7", ("0", "1"))
    assert asked == [(taken, None)] * 2
    assert ray.files == {"/spec": b"said"}
    assert cluster.places()["engine-0"].address == "10.0.0.7"


@pytest.mark.parametrize("raised", ["ActorUnavailableError", "GetTimeoutError"])
def test_a_signal_to_a_node_that_is_silent_is_none(
    raised: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert silent(SilentRay(raised), monkeypatch).signal("engine-0", 9) is False


def test_a_start_on_a_node_that_is_silent_waits_until_ray_decides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order = ProcessOrder("engine-0", (), "engine")
    back = SilentRay("ActorUnavailableError", "ActorUnavailableError")
    assert silent(back, monkeypatch).start(order) == 7
    gone = silent(SilentRay("ActorUnavailableError", "RayActorError"), monkeypatch)
    with pytest.raises(SlotLostError, match=r"engine-0 on 10\.0\.0\.2 is lost"):
        gone.start(order)
