"""What the page on clusters ships for Slurm, Kubernetes and Docker: read, and played with commands
that only note how they are called."""

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
DOCKERFILE = ROOT / "docker" / "Dockerfile.gpu"
LOCK = ROOT / "requirements" / "gpu.txt"
SHIPPED = ROOT / "docs" / "cluster"

#: Notes its name and arguments. `srun` and `scontrol`, `hostname` and `ray status` answer as well.
NOTED = """#!/bin/bash
name=$(basename "$0")
printf '%s\\n' "$name $(printf '%q ' "$@")" >> "$CALLS"
case "$name $1" in
    "scontrol show") printf 'n1\\nn2\\n' ;;
    "hostname --ip-address") echo "fe80::1 $OWN_ADDRESS" ;;
    "hostname --all-ip-addresses") echo '10.0.0.1 192.168.0.1' ;;
    "ray status") printf ' 1 node_a\\n 1 node_b\\n' ;;
    "srun "*) while [[ $1 == --* ]]; do shift; done; "$@" ;;
esac
"""


@pytest.fixture(params=["10.0.0.1", "127.0.1.1"], ids=["by name", "the name is loopback"])
def calls(tmp_path: Path, request: pytest.FixtureRequest) -> list[list[str]]:
    """What the batch script calls on two nodes."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name in ("scontrol", "srun", "hostname", "ray", "agentrl", "python"):
        (commands / name).write_text(NOTED)
        (commands / name).chmod(0o755)
    activate = tmp_path / ".venv" / "bin" / "activate"
    activate.parent.mkdir(parents=True)
    activate.touch()
    environment = {
        "PATH": f"{commands}:/usr/bin:/bin",
        "CALLS": str(tmp_path / "calls"),
        "OWN_ADDRESS": request.param,
        "SLURM_SUBMIT_DIR": str(tmp_path),
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_JOB_ID": "7",
    }
    script = ["bash", str(SHIPPED / "slurm.sh")]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return [shlex.split(line) for line in (tmp_path / "calls").read_text().splitlines()]


def config_of(words: list[str]) -> RunConfig:
    assert words[:2] == ["python", "train_async.py"]
    return parse(words[2:], "train_async").config


def test_the_batch_script_starts_ray_on_every_node_and_the_program_on_the_first(
    calls: list[list[str]],
) -> None:
    started = {tuple(words[1:]) for words in calls if words[:2] == ["ray", "start"]}
    assert started == {
        ("start", "--head", "--node-ip-address=10.0.0.1", "--port=6379", "--block"),
        ("start", "--address=10.0.0.1:6379", "--block"),
    }
    on = [word for words in calls if words[0] == "srun" for word in words if "nodelist" in word]
    assert sorted(on) == ["--nodelist=n1"] * 3 + ["--nodelist=n2"]
    (doctor,) = [words for words in calls if words[0] == "agentrl"]
    assert doctor[1:4] == ["doctor", "--ray-address", "10.0.0.1:6379"]
    (program,) = [words for words in calls if words[0] == "python"]
    config = config_of(program)
    assert config.ray_address == "10.0.0.1:6379"
    assert config.save == "/shared/checkpoints/7"
    assert calls.index(doctor) < calls.index(program)


def test_the_batch_script_asks_for_the_devices_that_the_program_uses(
    calls: list[list[str]],
) -> None:
    asked = dict(re.findall(r"^#SBATCH --(\S+?)=(\S+)$", (SHIPPED / "slurm.sh").read_text(), re.M))
    config = config_of(next(words for words in calls if words[0] == "python"))
    used = config.num_learner_ranks + (config.rollout_num_gpus or 0)
    assert int(asked["nodes"]) * int(asked["gpus-per-node"]) == used
    assert asked["ntasks-per-node"] == "1"


@pytest.fixture
def manifest() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((SHIPPED / "kuberay.yaml").read_text()))


def test_the_manifest_has_the_devices_volumes_and_versions_that_the_program_needs(
    manifest: list[dict[str, Any]],
) -> None:
    claim, cluster = manifest
    assert (claim["kind"], cluster["kind"]) == ("PersistentVolumeClaim", "RayCluster")
    assert f"\nray=={cluster['spec']['rayVersion']} " in LOCK.read_text()
    groups = [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]
    gpus = 0
    for group in groups:
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
        volumes = {each["name"]: each for each in pod["volumes"]}
        assert set(mounts.values()) == set(volumes)
        shared = volumes[mounts["/shared"]]["persistentVolumeClaim"]["claimName"]
        assert shared == claim["metadata"]["name"]
        assert volumes[mounts["/dev/shm"]]["emptyDir"] == {"medium": "Memory"}
        assert container["workingDir"] in DOCKERFILE.read_text()
        gpus += group.get("replicas", 1) * int(container["resources"]["limits"]["nvidia.com/gpu"])
    comment = re.findall(r"^# +(.*)$", (SHIPPED / "kuberay.yaml").read_text(), re.M)
    command = " ".join(line.rstrip("\\") for line in comment[comment.index(_first(comment)) :])
    config = config_of(shlex.split(command[command.index("python ") :]))
    assert config.num_learner_ranks + (config.rollout_num_gpus or 0) == gpus
    assert str(config.save).startswith("/shared/")
    assert str(config.save_hf).startswith("/shared/")
    assert config.run_dir.startswith("/scratch/")


def _first(lines: list[str]) -> str:
    return next(line for line in lines if line.startswith("python "))


def test_the_image_has_the_packages_of_the_lock_and_no_others() -> None:
    """By the commands of the page on requirements, so that no version stands in two places."""
    page = (ROOT / "requirements" / "README.md").read_text()
    told = re.findall(r"^(?:python3.*activate|pip install .*)$", page.split("## By pip")[0], re.M)
    text = DOCKERFILE.read_text()
    installs = re.findall(r"pip install .*", text)
    assert [line.replace("--no-cache-dir ", "") for line in installs] == told[1:]
    python = re.findall(r"python3\.\d+", told[0])[0]
    assert set(re.findall(r"python3\.\d+", text)) == {python}
    assert "==" not in text


def test_the_image_has_a_c_library_that_the_wheels_of_the_lock_accept() -> None:
    """glibc 2.34 or later: Ubuntu from 22.04 on."""
    (release,) = re.findall(r"^FROM ubuntu:(\d+)\.04$", DOCKERFILE.read_text(), re.M)
    assert int(release) >= 22


def test_what_the_image_copies_is_there_and_no_environment_or_run_is_among_it() -> None:
    sources = re.findall(r"^COPY (\S+) ", DOCKERFILE.read_text(), re.M)
    assert all((ROOT / source).exists() for source in sources)
    ignored = DOCKERFILE.with_name("Dockerfile.gpu.dockerignore").read_text().split()
    assert {".git", ".venv*", "runs"} <= set(ignored)
