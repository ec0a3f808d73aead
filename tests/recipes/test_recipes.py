"""CONTRIBUTING's recipes, done: each is a commit of one file in a copy of the repository, and the
copy then has what was added, and tests it.

The folder of a recipe holds the file where it goes. `RECIPES` says how it shows.
"""

import shutil
from pathlib import Path

import msgspec
import pytest

from tests.recipes.copies import IGNORED, QUIETLY, clone, commit, git, run
from tests.slices import of_the_day

HERE = Path(__file__).parent


class Recipe(msgspec.Struct, frozen=True):
    """`has`: Python that only runs where the addition is there; `tests`: those that it gets without
    a word."""

    has: str
    tests: tuple[str, ...]


RECIPES = {
    "chat_format": Recipe(
        """
from agentrl.config.fields import own_fields
assert "hermes-stop" in own_fields()["chat_format"].help
""",
        (
            "tests/unit/test_envs_chat_formats.py",
            "tests/property/test_formats_properties.py",
            "tests/security/test_tokens_injection.py::test_hostile_text_forges_nothing",
        ),
    ),
    "column": Recipe(
        """
import anyio
import numpy as np
from agentrl.actors.episode import EnvEpisodes
from agentrl.actors.player import Player
from agentrl.algorithms.decayed import DECAY, PLACES, Placing
from agentrl.algorithms.load import load_algorithm
from agentrl.algorithms.rows import Credit, Row
from agentrl.config.run import RunConfig
from agentrl.learner.batch import shift
from agentrl.learner.rows import decode_trajectory
from agentrl.types import PayloadRef, TrajectoryRow
from tests.unit.played_episodes import ASSIGNMENT, CALL, CHAT, LIMITS, Doubler, ScriptedClient
turns = [CALL, "42<|im_end|>"]
client = Placing(ScriptedClient(*turns))
played = anyio.run(Player(EnvEpisodes(Doubler, CHAT, LIMITS)).play, ASSIGNMENT, client)
(meta,) = played.report.trajectories
algorithm = load_algorithm(RunConfig(advantage_estimator="decayed", n_samples_per_prompt=2))
assert meta.columns == algorithm.needs.columns == (PLACES,)
told = TrajectoryRow(ASSIGNMENT.id, meta, PayloadRef("here", 1, 0, 0, 0))
read = decode_trajectory(told, played.columns, algorithm.needs.columns)
sampled_L = shift(read.sampled_L, False)
columns = {"sampled": sampled_L, "turns": shift(read.turns_L, -1)}
columns[PLACES.name] = shift(read.optional[PLACES], PLACES.fill)
found_L = algorithm.token_advantages(Row(told, Credit(2.0), read.tokens_L, columns))
lengths = [len(CHAT.vocab.encode_trusted(text)) for text in turns]
expected = np.concatenate([2 * DECAY ** np.arange(length) for length in lengths])
assert np.allclose(found_L[sampled_L], expected), found_L
""",
        ("tests/integration/test_learner_resume.py", "-k", "decayed"),
    ),
    "estimator": Recipe(
        """
from agentrl.algorithms.load import load_algorithm
from agentrl.config.fields import own_fields
from agentrl.config.run import RunConfig
assert "raft" in own_fields()["advantage_estimator"].help
algorithm = load_algorithm(RunConfig(advantage_estimator="raft", n_samples_per_prompt=3))
assert algorithm.values([0.0, 0.0, 1.0]) == [0.0, 0.0, 1.0]
""",
        ("tests/integration/test_learner_resume.py", "-k", "raft"),
    ),
    "model_family": Recipe(
        """
from agentrl.models.registry import families
assert families()["phi3"].architectures == ("Phi3ForCausalLM",)
""",
        (
            *(f"tests/parity/test_megatron_{name}.py" for name in ("logprobs", "step", "weights")),
            *("-k", "phi3"),
        ),
    ),
    "reward": Recipe(
        """
from agentrl.envs.named import load_reward
assert load_reward("contains")("in Rome.", "Rome", {}) == 1
""",
        ("tests/unit/test_envs_named.py",),
    ),
    "tool": Recipe(
        """
import anyio
from agentrl.envs.named import load_tool
from agentrl.envs.registry import load_env
assert anyio.run(load_tool("word_count"), "in three words") == 3
assert list(load_env("tools")(tools=["word_count"]).tools) == ["word_count"]
""",
        ("tests/unit/test_shipped.py", "tests/unit/test_envs_named.py"),
    ),
    "filter": Recipe(
        """
from agentrl.actors.group_scoring import FILTER
from agentrl.user_code import load
from agentrl.types import Task
keep = load(FILTER, "any_reward")
assert keep([0.0, 1.0], Task("a", {}))[0] and not keep([0.0], Task("a", {}))[0]
""",
        ("tests/unit/test_actors_group_scoring.py",),
    ),
}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("recipe", of_the_day(list(RECIPES), 3))
def test_an_addition_is_one_file(recipe: str, sound: Path, tmp_path: Path) -> None:
    copy = clone(sound, tmp_path)
    shutil.copytree(HERE / recipe, copy, dirs_exist_ok=True, ignore=IGNORED)
    commit(copy, recipe)
    changed = git(copy, "show", "--name-status", "--format=", "HEAD").splitlines()
    assert [line.partition("\t")[0] for line in changed] == ["A"], changed
    run(copy, "-c", RECIPES[recipe].has)
    run(copy, "-m", "pytest", *QUIETLY, *RECIPES[recipe].tests)


def test_every_folder_is_a_recipe() -> None:
    folders = {path.name for path in HERE.iterdir() if path.is_dir()} - {"__pycache__"}
    assert folders == RECIPES.keys()
