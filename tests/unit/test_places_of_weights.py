"""A flag that says where weights lie says so at its field; whoever needs such flags asks there."""

import ast
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import agentrl
from agentrl.cli.train import _is_default
from agentrl.config.fields import places_of_weights
from agentrl.config.first_weights import kept_of, models_of
from agentrl.config.places import with_places
from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.config.run import RunConfig

SHIPPED = PRESETS[DEFAULT].values
MODEL = str(SHIPPED["hf_checkpoint"])
#: What gives a run the models beside the policy.
ALL_MODELS = {
    "advantage_estimator": "ppo",
    "use_kl_loss": True,
    "use_opd": True,
    "opd_type": "megatron",
}
MODELS = sorted(places_of_weights())


def configured(model: str, place: str) -> RunConfig:
    return RunConfig(**SHIPPED | ALL_MODELS | {places_of_weights()[model].name: place})


def test_each_model_beside_the_policy_has_a_flag() -> None:
    config = RunConfig(**SHIPPED | ALL_MODELS)
    assert places_of_weights().keys() == {"policy", *config.models_beside}
    assert all(field.fact.holds == "folder" for field in places_of_weights().values())


@pytest.mark.parametrize("model", MODELS)
def test_a_run_that_such_a_flag_names_becomes_its_checkpoints(model: str, tmp_path: Path) -> None:
    name = places_of_weights()[model].name
    (tmp_path / "recovery").mkdir()
    assert with_places({name: str(tmp_path)})[name] == str(tmp_path / "recovery")


@pytest.mark.parametrize("model", MODELS)
def test_what_lies_there_is_looked_at_before_anything_starts(model: str, tmp_path: Path) -> None:
    flag = places_of_weights()[model].flag
    assert models_of(configured(model, MODEL))[flag] == MODEL
    (tmp_path / "iteration_0000003").mkdir()
    assert kept_of(configured(model, str(tmp_path)))[flag] == str(tmp_path)


@pytest.mark.parametrize("model", MODELS)
def test_a_run_with_other_weights_is_no_default_job(model: str) -> None:
    shipped = RunConfig(**SHIPPED)
    assert _is_default(shipped)
    name = places_of_weights()[model].name
    assert not _is_default(msgspec.structs.replace(shipped, **{name: MODEL}))


def named_in(path: Path) -> Iterator[tuple[int, set[str]]]:
    """The strings that stand side by side in a list, a tuple, a set or a dict of a module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Tuple | ast.List | ast.Set | ast.Dict):
            words = (leaf for leaf in ast.iter_child_nodes(node) if isinstance(leaf, ast.Constant))
            yield node.lineno, {leaf.value for leaf in words if isinstance(leaf.value, str)}


def test_no_module_keeps_a_list_of_such_flags() -> None:
    fields = list(places_of_weights().values())
    names = {field.name for field in fields} | {field.flag for field in fields}
    together = {places_of_weights()[model].name for model in ("policy", "reference")}  # one rule
    kept = [
        f"{path}:{line}"
        for path in Path(agentrl.__file__).parent.rglob("*.py")
        for line, words in named_in(path)
        if len(words & names) > 1 and not words & names <= together
    ]
    assert not kept
