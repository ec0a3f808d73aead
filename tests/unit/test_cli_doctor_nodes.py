"""What `agentrl doctor --ray-address` makes of what nodes say of themselves."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import ray

from agentrl.cli.doctor_nodes import examine_nodes, judged
from agentrl.cli.main import main
from agentrl.cluster.node_facts import NodeFacts, facts_here, facts_of
from agentrl.errors import EnvironmentSetupError

OWN = NodeFacts(
    address="10.0.0.1",
    host="one",
    python="3.11.7",
    agentrl="0.1.0",
    source="abc",
    packages={"torch": "2.11.0", "sglang": "0.5.9"},
    driver="580.95.05",
    cards=8,
    nccl="2.28.9",
    cuda="13",
    num_cpus=16,
    interface="eth0",
    shared_memory=8 * 1024**3,
    open_files=None,
    clock_s=1000.0,
    seen=["12 bytes"],
)
ASKED = (999.9, 1000.2)


def found(**changes: Any) -> dict[str, str]:
    """What is bad of a node that differs from this one in `changes`, by its name."""
    facts = msgspec.structs.replace(OWN, **changes)
    findings = list(judged(facts, OWN, ASKED, Path("/shared")))
    assert len({each.name for each in findings}) == len(findings) == 9
    return {each.name: each.detail for each in findings if not each.good}


def test_a_node_like_this_one_has_all_it_needs() -> None:
    assert found() == {}
    assert found(address="10.0.0.2", host="two", driver="610.1", open_files=10**6) == {}
    assert found(driver="550.1", cuda="12") == {}, "of CUDA 12"
    assert found(driver="", cards=0) == {}, "it has no GPUs"
    assert found(driver="550.1", nccl=OWN.nccl, cuda="") == {}, "nothing asks for a driver"


@pytest.mark.parametrize(
    ("changes", "name", "said"),
    [
        ({"python": "3.12.1"}, "python", "3.12.1, and 3.11.7 on this host"),
        ({"source": "abd"}, "agentrl", "(code abd), and 0.1.0 (code abc) on this host"),
        ({"agentrl": ""}, "agentrl", "not installed"),
        ({"packages": {"torch": "2.11.0"}}, "packages", "sglang is not installed (0.5.9 on this"),
        ({"packages": OWN.packages | {"torch": "2.9"}}, "packages", "torch 2.9 (2.11.0 on this"),
        ({"nccl": "2.27.5"}, "gpus", "NCCL 2.27.5, and 2.28.9 on this host"),
        ({"nccl": ""}, "gpus", "NCCL (none), and 2.28.9"),
        ({"driver": "550.1"}, "gpus", "driver 550.1: CUDA 13 needs 580 or later"),
        ({"driver": ""}, "gpus", "8 NVIDIA GPUs, and no driver is loaded: CUDA 13 needs 580"),
        ({"interface": None}, "interface", "none has 10.0.0.1: set GLOO_SOCKET_IFNAME"),
        ({"shared_memory": 64 * 1024**2}, "memory", "0.1 GiB free in /dev/shm; 1 GiB is needed"),
        ({"open_files": 100}, "open files", "ulimit -Hn 100;"),
        ({"clock_s": 997.0}, "clock", "off by at least 2.9 s"),
        ({"clock_s": 1003.2}, "clock", "off by at least 3.0 s"),
        ({"seen": ["nothing"]}, "shared", "does not see /shared as this host does"),
    ],
)
def test_what_a_node_lacks_is_told_and_nothing_else(
    changes: dict[str, Any], name: str, said: str
) -> None:
    bad = found(**changes)
    assert list(bad) == [name]
    assert said in bad[name]


def test_a_host_says_what_it_is_without_a_cluster_and_without_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # a Ray that is started leaves its token there
    facts = msgspec.json.decode(facts_here([str(tmp_path)]), type=NodeFacts)
    assert not ray.is_initialized(), "a Ray was started to ask it where this is"
    assert (facts.seen, facts.agentrl != "", facts.num_cpus > 0) == (["folder"], True, True)
    assert {"torch", "ray", "sglang"} <= facts.packages.keys()
    code = "import sys, agentrl.cluster.node_facts; print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


def test_the_answer_of_an_agentrl_that_says_less_is_no_traceback() -> None:
    said = msgspec.to_builtins(OWN)
    for name in ("cards", "cuda", "unwritable"):  # of later versions
        del said[name]
    assert facts_of(msgspec.json.encode(said)).cards == 0
    del said["driver"]
    with pytest.raises(EnvironmentSetupError, match=r"another agentrl is there.*`driver`"):
        facts_of(msgspec.json.encode(said))


def test_an_address_where_nobody_listens_is_told(
    free_tcp_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    address = f"127.0.0.1:{free_tcp_port}"
    [(place, [finding])] = examine_nodes(address, None)
    assert (place, finding.good) == (address, False)
    assert "no cluster can be used (--ray-address)" in finding.detail
    assert main(["doctor", "--ray-address", address]) == 3
    assert f"{address}:\nBAD ray" in capsys.readouterr().out


def test_a_shared_folder_is_asked_of_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--save", "/shared"]) == 2
    assert "add --ray-address" in capsys.readouterr().err
