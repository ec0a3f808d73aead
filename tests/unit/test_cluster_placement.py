"""What Ray is asked for, and how long a place is waited for. Ray itself is a double here."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentrl.cluster.placement import Cluster, Slot, ray_options
from agentrl.errors import EnvironmentSetupError


def test_a_run_without_an_address_has_a_cluster_of_its_own() -> None:
    """Ray would read RAY_ADDRESS where it is told no address, or `auto`."""
    options = ray_options(None, Path("/r"))
    assert options["address"] == "local"
    assert options["_temp_dir"] == "/r"
    assert "_temp_dir" not in ray_options(None, Path("/" + "r" * 100))


@pytest.mark.parametrize("address", ["auto", "10.0.0.1:6379"])
def test_a_cluster_that_runs_already_is_told_nothing_of_ours(address: str) -> None:
    assert ray_options(address, Path("/r")) == {"address": address}


class FullRay:
    """Ray on a cluster that has no room; after `turns` it has, or a node `fails`."""

    class exceptions:
        RayError = TimeoutError

    def __init__(self, turns: int, *, fails: bool = False) -> None:
        self._turns = turns
        self._fails = fails

    def remote(self, actor: object) -> Any:
        host = SimpleNamespace(node=SimpleNamespace(remote=lambda: "node"))
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda: host))

    def wait(self, nodes: list[str], num_returns: int, timeout: float) -> tuple[Any, Any]:
        assert timeout < 1
        self._turns -= 1
        return ([], nodes) if self._turns > 0 else (nodes, [])

    def get(self, nodes: list[str], timeout: float) -> list[tuple[str, int]]:
        if self._fails:
            raise TimeoutError
        return [("10.0.0.1", 7) for _ in nodes]


SLOTS = [Slot("host", 0, ("buffer",)), Slot("learner-0", 1, ("learner-0",))]


def place(monkeypatch: pytest.MonkeyPatch, ray: FullRay, check: Any = lambda: None) -> Cluster:
    monkeypatch.setitem(sys.modules, "ray", ray)
    cluster = Cluster(None, Path("/r"))
    cluster.place(SLOTS, check)
    return cluster


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
    with pytest.raises(EnvironmentSetupError, match="no place for host, learner-0 within"):
        place(monkeypatch, FullRay(3, fails=True))
