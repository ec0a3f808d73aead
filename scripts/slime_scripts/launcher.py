"""Run a Python launcher of slime below the root that `record.py` made.

What the launcher imports beside the standard library and `command_utils` is a stand-in; commands go
to the shell of that root, whose programs are stubs.
"""

import importlib.util
import itertools
import runpy
import subprocess
import sys
import tempfile
import time
import types
import urllib.request
from typing import Any
from unittest.mock import MagicMock

TREE = "/root/slime"


def _exec(command: str, capture_output: bool = False) -> str | None:
    done = subprocess.run(["/bin/bash", "-c", command], stdout=subprocess.PIPE, text=True)
    return done.stdout if capture_output else None


def _module(name: str, **members: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    vars(module).update(members)
    sys.modules[name] = module
    return module


def _path_of(number: int, ext: str) -> str:
    return f"/tmp/slime_temp_file_{number}.{ext}"


numbers = itertools.count()
tempfile._get_candidate_names = lambda: (f"{n:08d}" for n in numbers)  # type: ignore[attr-defined]
urllib.request.urlopen = MagicMock(return_value=MagicMock(status=200))
time.sleep = lambda seconds: None
for package in ("slime", "slime.utils", "slime.utils.external_utils"):
    _module(package, __path__=[])
_module("slime.utils.misc", exec_command=_exec)
_module("slime.utils.external_utils.typer_utils", dataclass_cli=lambda wrapped: wrapped)
for missing in ("torch", "yaml"):
    sys.modules[missing] = MagicMock()
NAME = "slime.utils.external_utils.command_utils"
spec = importlib.util.spec_from_file_location(NAME, f"{TREE}/{NAME.replace('.', '/')}.py")
assert spec is not None
assert spec.loader is not None
utils = importlib.util.module_from_spec(spec)
sys.modules[NAME] = utils
spec.loader.exec_module(utils)
utils.save_to_temp_file = lambda text, ext: _path_of(next(numbers), ext)  # type: ignore[attr-defined]
# `import a.b as U` reads the attributes of the packages.
for name in ("slime.utils.misc", "slime.utils.external_utils", NAME, "slime.utils"):
    parent, _, child = name.rpartition(".")
    setattr(sys.modules[parent], child, sys.modules[name])
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
