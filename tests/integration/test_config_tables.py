"""The committed tables of passed-through flags are those of the installed packages."""

import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.config.passthrough import FAMILIES, table
from agentrl.serving.launch import ENGINE_DEFAULTS, NEGATABLE, ROUTER_DEFAULTS

ROOT = Path(__file__).resolve().parents[2]


def test_the_tables_are_what_the_generator_writes() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "gen_flags.py"), "--check"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("family", FAMILIES)
def test_a_key_is_one_of_its_flags_names(family: str) -> None:
    known: dict[str, object] = {}
    for flag in table(next(f for f in FAMILIES if f == family)).flags:
        assert "--" + flag.key.replace("_", "-") in flag.names
        assert flag.key not in known
        known[flag.key] = flag


def test_what_serving_sets_by_itself_is_in_the_tables() -> None:
    sglang = {flag.key for flag in table("sglang").flags}
    router = {flag.key for flag in table("router").flags}
    assert {*ENGINE_DEFAULTS["cpu"], *ENGINE_DEFAULTS["cuda"], *NEGATABLE} <= sglang
    assert set(ROUTER_DEFAULTS) <= router
