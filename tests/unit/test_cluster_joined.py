"""What a node of a joined cluster lacks is told before anything starts, of all nodes at once."""

from pathlib import Path
from typing import Any, cast

import pytest

from agentrl.cluster.host import seen_here
from agentrl.cluster.joined import check_nodes, lacks_of
from agentrl.cluster.placement import Cluster
from agentrl.cluster.slots import NodePlace
from agentrl.config.run import RunConfig
from agentrl.errors import EnvironmentSetupError


class Nodes:
    """The driver's node, one with a learner, one with an engine. `blind`: what a node does not
    see; `other`: a file that differs there."""

    def __init__(self, blind: dict[str, str] | None = None, other: str = "") -> None:
        self._blind = blind or {}
        self._other = other
        self.looked: dict[str, list[str]] = {}

    def places(self) -> dict[str, NodePlace]:
        names = ("host", "learner-0", "engine-0")
        return {name: NodePlace(f"10.0.0.{i}", name) for i, name in enumerate(names, 1)}

    def processes(self, slot: str) -> list[str]:
        return ["buffer", "worker-0"] if slot == "host" else [slot]

    def seen(self, slot: str, paths: list[str]) -> list[str]:
        self.looked[slot] = paths
        lacks = self._blind.get(slot)
        return [
            "nothing"
            if lacks is not None and path.startswith(lacks)
            else "0" * 64
            if slot != "host" and self._other and path.endswith(self._other)
            else seen_here(Path(path))
            for path in paths
        ]


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    return RunConfig(hf_checkpoint=str(tmp_path / "model"), save=str(tmp_path / "save"))


def told(nodes: Nodes, config: RunConfig) -> str:
    with pytest.raises(EnvironmentSetupError) as error:
        check_nodes(cast(Cluster, nodes), config)
    return str(error.value)


def test_nodes_that_have_everything_are_fine(config: RunConfig) -> None:
    nodes = Nodes()
    check_nodes(cast(Cluster, nodes), config)
    assert list(Path(str(config.save)).iterdir()) == [], "nothing is left behind"
    assert len(nodes.looked["learner-0"]) == 4
    assert len(nodes.looked["engine-0"]) == len(nodes.looked["host"]) == 3


def test_a_folder_of_checkpoints_that_the_learner_does_not_share(config: RunConfig) -> None:
    said = told(Nodes({"learner-0": str(config.save)}), config)
    assert f"10.0.0.2 does not have {config.save}: --save names a folder" in said
    assert "10.0.0.3" not in said


def test_a_folder_of_pushed_weights_that_engines_do_not_share(
    config: RunConfig, tmp_path: Path
) -> None:
    flags: dict[str, Any] = {
        "update_weight_transport": "disk",
        "update_weight_disk_dir": f"{tmp_path}/pushed",
    }
    config = RunConfig(hf_checkpoint=config.hf_checkpoint, save=config.save, **flags)
    said = told(Nodes({"engine-0": f"{tmp_path}/pushed"}), config)
    assert f"10.0.0.3 does not have {tmp_path}/pushed: --update-weight-disk-dir" in said


def test_all_that_lacks_is_told_at_once(config: RunConfig) -> None:
    here = str(Path.cwd())
    said = told(Nodes({"learner-0": here, "engine-0": here}, other="config.json"), config)
    assert said.count(f"does not have {here}: start the program in a folder") == 2
    assert said.count("config.json: --hf-checkpoint names a folder") == 2


def test_a_cluster_of_one_node_is_not_asked(config: RunConfig) -> None:
    nodes = Nodes({"host": "/"})
    nodes.places = lambda: dict.fromkeys(("host", "engine-0"), NodePlace("10.0.0.1", "a"))  # type: ignore[method-assign]
    check_nodes(cast(Cluster, nodes), config)
    assert nodes.looked == {}


def test_what_a_node_lacks_that_a_slot_was_moved_to(config: RunConfig) -> None:
    """Only that node is asked, though the others may be gone."""
    nodes = Nodes(blind={"engine-0": str(config.hf_checkpoint)})
    (lack,) = lacks_of(cast(Cluster, nodes), config, "engine-0")
    assert lack.startswith(f"10.0.0.3 does not have {config.hf_checkpoint}")
    assert list(nodes.looked) == ["engine-0"]
    assert lacks_of(cast(Cluster, nodes), config, "learner-0") == []
