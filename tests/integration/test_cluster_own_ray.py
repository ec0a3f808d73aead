"""A run's own Ray starts although user code has imported Ray: that reads its settings at import."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRESET = ("--preset", "search-r1-local")

ENV = """
import ray
from ray._private import ray_constants

raise RuntimeError(f"keeps to this machine: {not ray_constants.ENABLE_RAY_CLUSTER}")
"""
START = """
import os, sys
from pathlib import Path
from agentrl.cluster.own_ray import import_ray

import_ray()
import ray  # user code
from agentrl.cluster.placement import Cluster
from tests.integration.listeners import listeners_of

with Cluster(None, Path(sys.argv[1])):
    found = listeners_of(os.getpid())
print("listeners", len(found) > 0, [str(each) for each in found if not each.is_on_loopback])
"""


def python(*argv: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {name: text for name, text in os.environ.items() if not name.startswith("RAY_")}
    environment["PYTHONPATH"] = str(ROOT)
    return subprocess.run(
        [sys.executable, *argv],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


def test_user_code_imports_ray_as_the_runs_own_needs_it(tmp_path: Path) -> None:
    code = tmp_path / "ours.py"
    code.write_text(ENV)
    done = python(str(ROOT / "train_async.py"), *PRESET, "--env", str(code), cwd=tmp_path)
    assert "keeps to this machine: True" in done.stderr
    assert done.returncode == 2


def test_a_runs_own_ray_starts_behind_user_code_and_listens_on_loopback(tmp_path: Path) -> None:
    folder = tmp_path / "ray"
    done = python("-c", START, str(folder))
    assert done.stdout.splitlines()[-1:] == ["listeners True []"], done.stderr[-2000:]
