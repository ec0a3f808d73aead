"""The benchmark of lost nodes: its roles, where it looks for a process, and its rows."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agentrl.config.resolve import parse
from benchmarks import cluster
from benchmarks.cluster import FLAGS, ROLES, Victim, rows_of


@pytest.mark.parametrize("name", ROLES)
def test_every_role_is_a_run_that_starts(name: str) -> None:
    config = parse([*FLAGS.split(), *ROLES[name].flags.split()], "train_async").config
    assert config.rollout_batch_size == 8


def victim(placed: str, said: str) -> Victim:
    found = Victim.__new__(Victim)
    nodes = SimpleNamespace(num_cpus=(2, 1, 1), ip=lambda node: f"10.0.0.{node + 1}")
    found._cluster, found._placed, found._said = cast(Any, nodes), placed, [said]
    return found


def test_a_process_is_where_it_was_placed_last() -> None:
    placed = "on 10.0.0.1: buffer, worker-0\non 10.0.0.2: worker-1, engine-10\n"
    again = "worker-1 is placed again on 10.0.0.3: worker-1 starts there\n"
    assert victim(placed, "").node_of("worker-1") == 1
    assert victim(placed, again).node_of("worker-1") == 2
    assert victim(placed, again).node_of("worker-0") == 0
    with pytest.raises(ValueError, match="not enough values"):
        victim(placed, "").node_of("engine-1")


def test_rows_count_what_hung_as_a_loss(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cluster, "accounts", lambda path: [("groups lost", 0, "groups", "0")])
    rows = rows_of("engine", {"notices": [1.0, 3.0, 60.0]}, 1, -1, tmp_path)
    found = {row.metric: row.value for row in rows}
    assert found == {
        "engine: lost and back": 4,
        "engine: hung": 1,
        "engine: notices, median": 3.0,
        "engine: notices, longest": 60.0,
        "engine: exit code": -1,
        "engine: groups lost": 0,
    }
