"""What a run has is asked of its configuration, and not how it is trained."""

import ast
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.plan import describe
from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.config.run import RunConfig

ROOT = Path(__file__).parents[2] / "agentrl"
#: They say what a kind of loss means.
MAY_BRANCH = ("config/run.py", "config/facts.py", "algorithms/")
MODEL = PRESETS[DEFAULT].values["hf_checkpoint"]


def branches(source: bytes) -> list[str]:
    """Where a module asks for the kind of loss to decide something else."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr == "is_supervised":
            found.append(f"line {node.lineno}: is_supervised")
        elif isinstance(node, ast.Compare) and "sft_loss" in ast.unparse(node):
            found.append(f"line {node.lineno}: {ast.unparse(node)}")
    return found


def test_the_kind_of_loss_is_branched_on_where_its_meaning_is_said() -> None:
    found = {
        path.relative_to(ROOT).as_posix(): lines
        for path in sorted(ROOT.rglob("*.py"))
        if (lines := branches(path.read_bytes()))
    }
    assert {path: lines for path, lines in found.items() if not path.startswith(MAY_BRANCH)} == {}


@pytest.mark.parametrize(
    ("flags", "has_engines", "has_env"),
    [
        ({}, True, True),
        ({"eval_only": True}, True, True),
        ({"debug_rollout_only": True}, True, True),
        ({"loss_type": "sft_loss"}, False, False),
        ({"load_debug_rollout_data": "it"}, False, True),
        ({"rollout_external_engine_addrs": ["127.0.0.1:1"]}, True, True),
    ],
)
def test_which_run_has_engines_and_which_an_env(
    flags: dict[str, Any], has_engines: bool, has_env: bool
) -> None:
    config = RunConfig(**flags)
    assert (config.has_engines, config.has_env) == (has_engines, has_env)
    assert config.has_engines == bool(config.num_engines)
    assert (config.dialogue_key is None) == has_env


def planned(**flags: Any) -> set[str]:
    """The first words of the lines of a plan."""
    page = describe(RunConfig(hf_checkpoint=MODEL, device="cpu", **flags))
    return {line.split()[0] for line in page.splitlines() if line}


def test_a_plan_tells_of_no_engine_where_there_is_none() -> None:
    of_engines = {"turns", "engine", "KV"}
    assert of_engines <= planned()
    assert not of_engines & planned(loss_type="sft_loss")
    assert not of_engines & planned(load_debug_rollout_data="it")
