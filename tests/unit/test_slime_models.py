"""The arguments in slime's files of models, as they were recorded: those of a model that agentrl
trains are accepted if they say what its config.json says; those of the others are refused by name.
"""

import json
from pathlib import Path

import pytest

from agentrl.config.command_line import read_flags
from agentrl.config.megatron import MegatronSettings
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.models.registry import describe_model
from scripts.model_args import facts
from scripts.slime_scripts.made_ground import published

ROOT = Path(__file__).resolve().parents[2]
RECORD = json.loads((ROOT / "tests/fixtures/slime_models.json").read_text())
ARGUMENTS: dict[str, list[str]] = {Path(row["path"]).stem: row["argv"] for row in RECORD["models"]}
#: Models of which slime has no file.
OURS = {"mistral-7B-v0.3", "mistral-nemo-12B"}
REFUSED = {"glm5-744B-A40B", "glm5.2-744B-A40B"}
#: Files of slime's that say something else than the config.json of their model.
OTHERWISE = {
    "glm4-32B": ["--num-layers is 64 but", "--num-query-groups is 8 but"],
    "qwen2.5-1.5B": ["--rotary-base is 10000.0 but"],
}


def test_each_file_of_slimes_has_one_here() -> None:
    assert ARGUMENTS.keys() == facts().keys() - OURS
    assert len(ARGUMENTS) == 39


@pytest.mark.parametrize("name", sorted(ARGUMENTS.keys() - REFUSED))
def test_the_arguments_of_a_model_that_is_trained_are_compared_with_its_config(name: str) -> None:
    given = read_flags(ARGUMENTS[name])
    assert given.refused == []
    run = RunConfig(**given.values)
    positions = run.megatron.get("max_position_embeddings", 131072)
    config = {**published(facts()[name]), "max_position_embeddings": positions}
    described = describe_model(config, None, source="config.json")
    said = ""
    try:
        described.architecture.check(MegatronSettings.from_config(run))
    except ConfigError as error:
        said = str(error)
    wanted = OTHERWISE.get(name, [])
    assert len(said.splitlines()) == len(wanted), said
    assert all(words in said for words in wanted), said


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_model_that_is_not_trained_is_refused_by_its_name(name: str) -> None:
    (said,) = read_flags(ARGUMENTS[name]).refused
    assert "get_glm5_spec: GLM-5 is not supported: its sparse attention takes no packed" in said
