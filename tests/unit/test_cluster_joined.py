"""What a node of a joined cluster lacks is told before anything starts, of all nodes at once."""

import json
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from safetensors.numpy import save_file

from agentrl.cluster.interfaces import lacking_interfaces
from agentrl.cluster.joined import check_nodes, lacks_of
from agentrl.cluster.kinds import ProcessKind
from agentrl.cluster.node_facts import NodeFacts, facts_here, facts_of, seen_here
from agentrl.cluster.placement import Cluster
from agentrl.cluster.slots import NodePlace
from agentrl.config.run import RunConfig
from agentrl.errors import EnvironmentSetupError


class Nodes:
    """The driver's node, one with a learner, one with an engine. `blind`: what a node does not
    see; `other`: a file that differs there; `read_only`: what a node cannot write; `differs`: its
    facts that do; `short`: a file of weights that is cut off there."""

    def __init__(
        self,
        blind: dict[str, str] | None = None,
        other: str = "",
        read_only: dict[str, str] | None = None,
        differs: dict[str, dict[str, Any]] | None = None,
        short: dict[str, str] | None = None,
    ) -> None:
        self._blind = blind or {}
        self._other = other
        self._read_only = read_only or {}
        self._differs = differs or {}
        self._short = short or {}
        self.silent = ""
        self.services: list[str] = []
        self.looked: dict[str, list[str]] = {}
        self.written: dict[str, list[str]] = {}

    def places(self) -> dict[str, NodePlace]:
        names = ("host", "learner-0", "engine-0")
        return {name: NodePlace(f"10.0.0.{i}", name) for i, name in enumerate(names, 1)}

    def kinds(self, slot: str) -> dict[str, ProcessKind]:
        if slot == "host":
            own: dict[str, ProcessKind] = {"buffer": "buffer", "worker-0": "worker"}
            return own | dict.fromkeys(self.services, "service")
        return {slot: "learner" if slot == "learner-0" else "engine"}

    def facts(self, slot: str, paths: list[str], places: list[tuple[str, str]]) -> NodeFacts:
        if slot == self.silent:
            raise EnvironmentSetupError("no answer within 60 s")
        self.looked[slot] = paths
        self.written[slot] = [flag for flag, _ in places]
        lacks = self._blind.get(slot)
        seen = [
            "nothing"
            if lacks is not None and path.startswith(lacks)
            else "0" * 64
            if slot != "host" and self._other and path.endswith(self._other)
            else "7 bytes"
            if path.endswith(self._short.get(slot, "nowhere"))
            else seen_here(Path(path))
            for path in paths
        ]
        own = facts_of(facts_here((), places))
        for index, (flag, _) in enumerate(places):
            if flag == self._read_only.get(slot):
                own.unwritable[index] = f"{flag}: cannot be written"
        return msgspec.structs.replace(own, seen=seen, **self._differs.get(slot, {}))


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


def test_the_users_code_is_on_the_nodes_that_run_it(config: RunConfig, tmp_path: Path) -> None:
    for name in ("reward.py", "loss.py", "source.py"):
        (tmp_path / name).write_text("")
    named = {
        "custom_rm_path": f"{tmp_path}/reward.py:reward",
        "custom_loss_function_path": f"{tmp_path}/loss.py",
        "data_source_path": f"{tmp_path}/source.py:Source",
    }
    config = msgspec.structs.replace(config, **named)
    nodes = Nodes({"host": str(tmp_path / "reward.py")}, other="loss.py")
    said = told(nodes, config)
    assert f"10.0.0.1 does not have {tmp_path}/reward.py: --custom-rm-path names a file" in said
    assert f"10.0.0.2 has another {tmp_path}/loss.py: --custom-loss-function-path names" in said
    assert "10.0.0.3" not in said
    assert not any(path.endswith("source.py") for its in nodes.looked.values() for path in its)


@pytest.mark.parametrize(
    ("differs", "said"),
    [
        ({"source": "abc"}, "10.0.0.3 has agentrl "),
        ({"agentrl": ""}, "10.0.0.3 has agentrl not installed (code "),
        ({"packages": {}}, "10.0.0.3 has torch (none), and this host has "),
    ],
)
def test_another_agentrl_or_other_packages_are_told(
    config: RunConfig, differs: dict[str, Any], said: str
) -> None:
    text = told(Nodes(differs={"engine-0": differs}), config)
    assert said in text
    assert "install the same on every node" in text
    assert "10.0.0.2" not in text


def test_a_build_for_the_cpu_is_no_other_version(config: RunConfig) -> None:
    packages = {
        name: f"{version.partition('+')[0]}+cpu"
        for name, version in facts_of(facts_here(())).packages.items()
    }
    check_nodes(cast(Cluster, Nodes(differs={"host": {"packages": packages}})), config)


def test_a_node_that_does_not_answer_is_told_beside_the_others(config: RunConfig) -> None:
    nodes = Nodes({"engine-0": str(config.hf_checkpoint)})
    nodes.silent = "learner-0"
    said = told(nodes, config)
    assert "10.0.0.2 does not say what it has: no answer within 60 s" in said
    assert f"10.0.0.3 does not have {config.hf_checkpoint}" in said


def test_nodes_write_where_their_processes_will(config: RunConfig, tmp_path: Path) -> None:
    config = msgspec.structs.replace(config, save_hf=f"{tmp_path}/hf/{{rollout_id}}")
    nodes = Nodes(read_only={"learner-0": "--save-hf"})
    assert "10.0.0.2: --save-hf: cannot be written" in told(nodes, config)
    written = {name: flags[2:] for name, flags in nodes.written.items()}
    assert written == {"host": [], "learner-0": ["--save", "--save-hf"], "engine-0": []}
    assert {tuple(flags[:2]) for flags in nodes.written.values()} == {("--run-dir", "TMPDIR")}
    nodes = Nodes(read_only={"learner-0": "--save"})
    assert "10.0.0.2: --save: cannot be written" in told(nodes, config)
    assert not (tmp_path / "hf").exists(), "nothing is left behind"


def test_a_place_that_can_be_no_folder_is_told_of_by_the_node_itself(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    places = [("--save-hf", f"{tmp_path}/file/hf"), ("--save", f"{tmp_path}/new/save")]
    found = facts_of(facts_here((), places)).unwritable
    assert "--save-hf" in found[0]
    assert "file is a file, and a folder is to be there" in found[0]
    assert found[1] == ""
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_every_node_can_write_logs_and_nodes_of_engines_their_copy_of_weights(
    config: RunConfig, tmp_path: Path
) -> None:
    disk: dict[str, Any] = {
        "update_weight_transport": "disk",
        "update_weight_disk_dir": f"{tmp_path}/pushed",
        "update_weight_local_checkpoint_dir": f"{tmp_path}/copy",
    }
    nodes = Nodes(read_only={"engine-0": "--update-weight-local-checkpoint-dir"})
    said = told(nodes, msgspec.structs.replace(config, **disk))
    assert "10.0.0.3: --update-weight-local-checkpoint-dir: cannot be written" in said
    assert "--update-weight-local-checkpoint-dir" not in nodes.written["learner-0"]
    said = told(Nodes(read_only={"host": "--run-dir", "engine-0": "--run-dir"}), config)
    assert "10.0.0.1: --run-dir: cannot be written" in said
    assert "10.0.0.3: --run-dir: cannot be written" in said
    going_on = msgspec.structs.replace(config, resume=str(tmp_path))
    assert "10.0.0.3: --resume: cannot" in told(Nodes(read_only={"engine-0": "--resume"}), going_on)


def test_every_node_can_write_to_the_folder_of_temporary_files_that_the_driver_has(
    config: RunConfig,
) -> None:
    """The run's private folder is made there on every node."""
    nodes = Nodes(read_only={"engine-0": "TMPDIR"})
    assert "10.0.0.3: TMPDIR: cannot be written" in told(nodes, config)


@pytest.mark.parametrize("num_nodes", [1, 3])
def test_the_first_learners_node_has_shared_memory_for_a_push_to_engines_beside_it(
    config: RunConfig, num_nodes: int
) -> None:
    """Rank 0 pushes; a cluster may have one node, and was joined all the same."""
    save_file({"w": np.zeros((1 << 18,), np.float32)}, f"{config.hf_checkpoint}/model.safetensors")
    shares: dict[str, Any] = {"colocate": True, "ray_address": "auto"}
    config = msgspec.structs.replace(config, **shares, update_weight_buffer_size=1 << 20)
    scarce = {name: {"shared_memory": (1 << 21) - 1} for name in ("host", "learner-0")}
    nodes = Nodes(differs=scarce)
    if num_nodes == 1:
        here = NodePlace("10.0.0.2", "a")
        nodes.places = lambda: dict.fromkeys(("learner-0", "host"), here)  # type: ignore[method-assign]
    said = told(nodes, config)
    assert "10.0.0.2: --colocate: 2.0 MiB are free in /dev/shm, and a push takes up to 2.0" in said
    assert "10.0.0.1" not in said
    enough = Nodes(differs={name: {"shared_memory": 1 << 21} for name in scarce})
    enough.places = nodes.places  # type: ignore[method-assign]
    check_nodes(cast(Cluster, enough), config)
    check_nodes(cast(Cluster, nodes), msgspec.structs.replace(config, colocate=False))


def weights_in(folder: Path, *names: str) -> None:
    """As `read_places` sees them: an index, and files of one tensor each."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    index = {"weight_map": {f"t{number}": name for number, name in enumerate(names)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for name in names:
        (folder / name).write_bytes(b"weights of some length")


def test_a_model_that_was_copied_in_part_is_told_with_sizes(config: RunConfig) -> None:
    model = Path(str(config.hf_checkpoint))
    shards = [f"model-{number}.safetensors" for number in range(6)]
    weights_in(model, *shards)
    nodes = Nodes({"engine-0": str(model / "model-")}, short={"learner-0": shards[1]})
    said = told(nodes, config)
    assert f"10.0.0.2 has 7 bytes of {model}/{shards[1]}, and this host 22 bytes: --hf-ch" in said
    assert f"10.0.0.3 does not have {model}/{shards[0]}: --hf-checkpoint names weights" in said
    assert said.count("10.0.0.3") == 3
    assert said.endswith("(3 files more are not as they are here)")
    assert not any(path.endswith(".safetensors") for path in nodes.looked["host"])


def test_a_service_reads_no_weights_whatever_its_name(config: RunConfig, tmp_path: Path) -> None:
    weights_in(tmp_path / "model", "model-0.safetensors")
    nodes = Nodes()
    nodes.services = ["engine-search", "learner-of-words"]
    check_nodes(cast(Cluster, nodes), config)
    assert not any(path.endswith(".safetensors") for path in nodes.looked["host"])
    assert "--save" not in nodes.written["host"]


def test_weights_that_the_learner_begins_with_are_on_its_nodes(
    config: RunConfig, tmp_path: Path
) -> None:
    weights_in(tmp_path / "model", "model-0.safetensors")
    weights_in(tmp_path / "first", "model-0.safetensors")
    weights_in(tmp_path / "critic", "model-0.safetensors")
    kept = tmp_path / "run" / "iteration_0000003"
    kept.mkdir(parents=True)
    manifest = {"run_id": "r", "iteration": 3, "version": 3, "written": 1.0}
    (kept / "manifest.json").write_text(json.dumps({"manifest": manifest}))
    megatron = tmp_path / "megatron"
    (megatron / "release").mkdir(parents=True)
    (megatron / "latest_checkpointed_iteration.txt").write_text("release")
    (megatron / "release" / ".metadata").write_bytes(b"header")
    flags: dict[str, Any] = {
        "load": f"{tmp_path}/first",
        "ref_load": f"{tmp_path}/run",
        "use_opd": True,
        "opd_teacher_load": str(megatron),
        "advantage_estimator": "ppo",
        "critic_load": f"{tmp_path}/critic",
    }
    config = msgspec.structs.replace(config, **flags)
    blind = {
        "--load": f"{tmp_path}/first/config.json",
        "--ref-load": f"{kept}/manifest.json",
        "--opd-teacher-load": f"{megatron}/release/.metadata",
        "--critic-load": f"{tmp_path}/critic/model-0.safetensors",
    }
    for flag, path in blind.items():
        said = told(Nodes(dict.fromkeys(("host", "learner-0", "engine-0"), path)), config)
        assert f"10.0.0.2 does not have {path}: {flag} names weights" in said
        assert "10.0.0.1" not in said
        assert "10.0.0.3" not in said
    nodes = Nodes()
    check_nodes(cast(Cluster, nodes), config)
    assert f"{tmp_path}/model/model-0.safetensors" in nodes.looked["engine-0"]
    assert f"{tmp_path}/model/model-0.safetensors" not in nodes.looked["learner-0"]


def test_an_interface_that_a_node_lacks_is_told_with_those_that_it_has(config: RunConfig) -> None:
    there = {"interfaces": ["lo", "eth0", "ib0"], "interface_variables": {}}
    differs = dict.fromkeys(("host", "learner-0", "engine-0"), there)
    named: dict[str, Any] = {"env_vars": ("NCCL_SOCKET_IFNAME=eth9", "GLOO_SOCKET_IFNAME=ib0")}
    said = told(Nodes(differs=differs), msgspec.structs.replace(config, **named))
    what = "has no interface for NCCL_SOCKET_IFNAME=eth9 of --env-vars, but lo, eth0, ib0: name one"
    assert said.count(what) == 3
    assert "GLOO" not in said
    named = {"train_env_vars": {"GLOO_SOCKET_IFNAME": "ib9"}}
    said = told(Nodes(differs=differs), msgspec.structs.replace(config, **named))
    assert said.count("has no interface for GLOO_SOCKET_IFNAME=ib9 of --train-env-vars") == 1
    assert "10.0.0.2 has no interface" in said
    own = there | {"interface_variables": {"TP_SOCKET_IFNAME": "eth1"}}
    said = told(Nodes(differs=differs | {"engine-0": own}), config)
    assert "10.0.0.3 has no interface for TP_SOCKET_IFNAME=eth1 of its own environment" in said
    right: dict[str, Any] = {"env_vars": ("TP_SOCKET_IFNAME=eth0",)}
    better = msgspec.structs.replace(config, **right)
    check_nodes(cast(Cluster, Nodes(differs=differs | {"engine-0": own})), better)


def test_loopback_is_refused_where_ranks_and_engines_of_nodes_meet(config: RunConfig) -> None:
    there = {"interfaces": ["lo", "eth0"], "interface_variables": {}}
    differs = dict.fromkeys(("host", "learner-0", "engine-0"), there)
    named: dict[str, Any] = {"env_vars": ("GLOO_SOCKET_IFNAME=lo", "NCCL_SOCKET_IFNAME=^lo")}
    said = told(Nodes(differs=differs), msgspec.structs.replace(config, **named))
    what = "has GLOO_SOCKET_IFNAME=lo of --env-vars, by which no other node is reached: name one"
    assert said.count(what) == 2, "those of the learner and of the engine"
    assert "NCCL" not in said
    own = there | {"interface_variables": {"NCCL_SOCKET_IFNAME": "=lo"}}
    said = told(Nodes(differs=differs | {"engine-0": own}), config)
    assert "10.0.0.3 has NCCL_SOCKET_IFNAME==lo of its own environment" in said
    check_nodes(cast(Cluster, Nodes(differs=differs | {"host": own})), config)


@pytest.mark.parametrize(
    ("name", "value", "is_there"),
    [
        ("NCCL", "eth", True),
        ("NCCL", "eth0,eth9", True),
        ("NCCL", "en,ib", True),
        ("NCCL", "=eth", False),
        ("NCCL", "=eth0:4000", True),
        ("NCCL", "th0", False),
        ("NCCL", "^docker", True),
        ("NCCL", "^eth,ib,lo", False),
        ("NCCL", "^=eth,ib,lo", True),
        ("GLOO", "eth", False),
        ("GLOO", "eth0,ib0", True),
        ("GLOO", "eth0,eth9", False),
        ("TP", "", True),
    ],
)
def test_interfaces_are_named_as_each_library_reads_them(
    name: str, value: str, is_there: bool
) -> None:
    named = {f"{name}_SOCKET_IFNAME": value}
    assert is_there == (list(lacking_interfaces(named, ["lo", "eth0", "ib0"])) == [])


def test_a_node_says_which_interfaces_it_has_and_which_its_environment_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth9")
    found = facts_of(facts_here(()))
    assert "lo" in found.interfaces
    assert found.interface_variables == {"NCCL_SOCKET_IFNAME": "eth9"}
