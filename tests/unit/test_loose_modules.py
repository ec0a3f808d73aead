"""A folder of Python files stands on the path of imports once a flag names a file of it: none of
our files there may bear a name that a package looks for, such as `cuda`, for which torch looks."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
FOLDERS = ("benchmarks", "scripts", "examples", "envs_contrib", "tests")

WATCH = """
import sys
class Watch:
    def find_spec(self, name, path=None, target=None):
        if path is None: print("looked for", name, flush=True)
sys.meta_path.insert(0, Watch())
import torch, torch.distributed, transformers, megatron.core, ray
"""


def test_no_file_of_ours_bears_the_name_of_a_module_that_packages_look_for() -> None:
    ran = subprocess.run(
        [sys.executable, "-P", "-c", WATCH], capture_output=True, text=True, cwd="/", check=True
    )
    said = [line.removeprefix("looked for ") for line in ran.stdout.splitlines()]
    wanted = set(said) | set(sys.stdlib_module_names)
    assert {"cuda", "torch", "numpy"} <= wanted
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    taken = [str(path.relative_to(ROOT)) for path in files if path.stem in wanted]
    packaged = [name for name in taken if (ROOT / name).name in ("__init__.py", "__main__.py")]
    assert sorted(set(taken) - set(packaged)) == []
