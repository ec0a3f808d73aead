"""Every command that docs/cluster.md shows is run by a test, on nodes that are network namespaces
where it needs some, or has a reason here why none can."""

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentrl.config.resolve import parse
from agentrl.config.run import RunConfig

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/cluster.md").read_text()

_TWO = "integration/test_real_two_nodes.py::"
_JOBS = "integration/test_real_submitted_jobs.py::test_a_job_is_stopped_and_another_goes_on"
#: By how a command begins, the test that runs it, with other addresses and counts.
RUN_BY = {
    "ray start": f"{_TWO}test_ranks_of_two_nodes_train_and_push_to_an_engine_of_the_other",
    "agentrl doctor": f"{_TWO}test_the_doctor_asks_every_node",
    "agentrl audit": "unit/test_docs_commands.py::test_every_snippet_of_a_page_runs",
    "python train_async.py --ray-address": f"{_TWO}test_ranks_of_two_nodes_train_and_push",
    "python train_async.py --sglang-config": "unit/test_cluster_page.py::test_the_file_of_engines",
    "ray job": _JOBS,
    "sysctl": "unit/test_cluster_page.py::test_outgoing_connections_take_ports",
}
#: By how a command begins, why no test runs it.
NOT_RUN = {
    "pip install": "it would fetch Ray's dashboard from a package index",
}
_PROGRAMS = ("ray", "agentrl", "python", "sysctl", "pip", "docker", "srun", "kubectl", "sbatch")


def commands() -> set[str]:
    """What stands in code, in blocks or in a line, and begins as a command does."""
    blocks = re.findall(r"^```text\n(.*?)^```", PAGE, re.M | re.S)
    found = "\n".join(blocks).replace("\\\n", " ").splitlines()
    found += re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", PAGE, flags=re.M | re.S))
    bare = (re.sub(r"^(\w+=\S+ )+", "", line).strip() for line in found)
    return {line for line in bare if line.split(" ")[0] in _PROGRAMS and " " in line}


def test_the_page_has_commands() -> None:
    assert len(commands()) >= 8


@pytest.mark.parametrize("command", sorted(commands()))
def test_each_command_has_a_test_that_runs_it_or_a_reason(command: str) -> None:
    known = [start for start in (*RUN_BY, *NOT_RUN) if command.startswith(start)]
    assert known, f"{command!r}: name a test in RUN_BY, or say in NOT_RUN why there is none"
    for start in set(known) & set(RUN_BY):
        path, _, name = RUN_BY[start].partition("::")
        assert f"def {name}" in (ROOT / "tests" / path).read_text(), RUN_BY[start]


def flags_of(start: str) -> list[str]:
    (command,) = [one for one in commands() if one.startswith(start)]
    return shlex.split(command)[2:]


def test_the_dry_run_of_the_page_is_a_run_of_two_nodes_of_eight() -> None:
    config = parse(flags_of("python train_async.py --ray-address"), "train_async").config
    assert (config.num_learner_ranks, config.num_engines, config.num_engine_devices) == (8, 4, 8)


def test_the_file_of_engines_is_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (block,) = re.findall(r"^```yaml\n(sglang:.*?)^```", PAGE, re.M | re.S)
    assert yaml.safe_load(block)
    (tmp_path / "groups.yaml").write_text(block)
    monkeypatch.chdir(tmp_path)
    flags = [*flags_of("python train_async.py --sglang-config"), "--ray-address", "10.0.0.1:6379"]
    config: RunConfig = parse(flags, "train_async").config
    assert [engine.size for engine in config.engines] == [4, 4, 1, 1, 1, 1]
    assert config.engines[-1].overrides == {"max_running_requests": 64}
    assert config.num_engine_devices == 16


#: Connects a socket to another of this namespace, and prints its port.
CONNECT = """
import socket
there = socket.create_server(("127.0.0.1", 0))
ports = []
for _ in range(20):
    with socket.create_connection(there.getsockname()) as one:
        ports.append(one.getsockname()[1])
print(min(ports), max(ports))
"""


def test_outgoing_connections_take_ports_of_the_range_that_the_page_sets() -> None:
    (command,) = [one for one in commands() if one.startswith("sysctl -w")]
    first, last = map(int, re.findall(r"\d{4,}", command))
    program = f"ip link set lo up && {command} && exec python3 -c '{CONNECT}'"
    done = run_apart(program)
    if "Operation not permitted" in done.stderr or "Permission denied" in done.stderr:
        pytest.skip("this user has no network namespaces")
    assert done.returncode == 0, done.stderr
    low, high = map(int, done.stdout.splitlines()[-1].split())
    assert first <= low <= high <= last


def run_apart(program: str) -> Any:
    command = ["unshare", "--net", "sh", "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
