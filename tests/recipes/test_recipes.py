"""CONTRIBUTING's recipes, done: each is a commit of one file in a copy of the repository, and the
copy then has what was added, and tests it.

The folder of a recipe holds the file where it goes. `RECIPES` says how it shows.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.slices import of_the_day

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
IGNORED = shutil.ignore_patterns("__pycache__", "*.pyc")
#: What is said of a test that fails is not lost among warnings.
QUIETLY = ("-q", "-x", "--disable-warnings", "-p", "no:cacheprovider")
COPIED = (
    *("agentrl", "benchmarks", "envs_contrib", "scripts", "tests"),
    *("pyproject.toml", "train.py", "train_async.py"),
)


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
from agentrl.actors.judge import load_filter
from agentrl.types import Task
keep = load_filter("any_reward")
assert keep([0.0, 1.0], Task("a", {}))[0] and not keep([0.0], Task("a", {}))[0]
""",
        ("tests/unit/test_actors_judge.py",),
    ),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of one commit, with what ships."""
    folder = tmp_path_factory.mktemp("sound") / "repository"
    folder.mkdir()
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=IGNORED)
        else:
            shutil.copy(source, folder / name)
    git(folder, "init", "--quiet")
    commit(folder, "what ships")
    return folder


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("recipe", of_the_day(list(RECIPES), 3))
def test_an_addition_is_one_file(recipe: str, sound: Path, tmp_path: Path) -> None:
    copy = tmp_path / "repository"
    git(tmp_path, "clone", "--quiet", "--local", str(sound), str(copy))
    shutil.copytree(HERE / recipe, copy, dirs_exist_ok=True, ignore=IGNORED)
    commit(copy, recipe)
    changed = git(copy, "show", "--name-status", "--format=", "HEAD").splitlines()
    assert [line.partition("\t")[0] for line in changed] == ["A"], changed
    run(copy, "-c", RECIPES[recipe].has)
    run(copy, "-m", "pytest", *QUIETLY, *RECIPES[recipe].tests)


#: What each file of a flag says more: the flag, what reads it, and another value of it.
FLAG = {
    "agentrl/config/flags/logging.py": (
        "import ACTS, ENGINES, FREE, POLICY, TRAINS, flag",
        "import ACTS, ENGINES, FREE, LEARNER, POLICY, TRAINS, Count, flag",
        """
    ref_log_interval: Annotated[
        Count | None,
        flag(
            "Log every so many iterations that there is a reference",
            group="tracking",
            on_resume=FREE,
            modes=POLICY,
            halves=LEARNER,
            needs="reference",
            reaches_weights=False,
        ),
    ] = None
""",
    ),
    "tests/unit/flag_values.py": (
        '    "run_id": "mine",',
        '    "ref_log_interval": "3",\n    "run_id": "mine",',
        "",
    ),
    "agentrl/learner/loop.py": (
        "        interval = self._cfg.ref_update_interval\n",
        """        every = self._cfg.ref_log_interval
        if every is not None and iteration % every == 0:
            logger.info("iteration %d has a reference", iteration)
        interval = self._cfg.ref_update_interval
""",
        "",
    ),
}
TABLE = "tests/unit/flag_matrix.tsv"
HAS_FLAG = """
import pytest
from agentrl.config.command_line import help_page
from agentrl.config.resolve import parse
from agentrl.config.toml import dump_config
from agentrl.errors import ConfigError
given = ["--ref-log-interval", "3", "--use-kl-loss"]
config = parse(given, "train_async").config
assert config.ref_log_interval == 3 and "ref_log_interval = 3" in dump_config(config)
assert "--ref-log-interval INT" in help_page(["--help"], "train_async")
for refused in (given[:2], [*given, "--eval-only"], ["--ref-log-interval", "0", *given[2:]]):
    with pytest.raises(ConfigError, match="--ref-log-interval"):
        parse(refused, "train_async")
"""
READS = "tests/unit/test_flag_reads.py"
IS_READ = f"{READS}::test_what_is_said_to_be_read_reaches_a_process[ref_log_interval-policy]"


@pytest.mark.timeout(1800)
def test_a_flag_is_one_edit_beside_what_reads_it(sound: Path, tmp_path: Path) -> None:
    copy = tmp_path / "repository"
    git(tmp_path, "clone", "--quiet", "--local", str(sound), str(copy))
    for path, (of, by, more) in FLAG.items():
        if path == "agentrl/learner/loop.py":
            with pytest.raises(AssertionError, match="ref_log_interval"):  # nothing reads it yet
                run(copy, "-m", "pytest", *QUIETLY, IS_READ)
        text = (copy / path).read_text()
        assert text.count(of) == 1, f"{of!r} in {path}"
        (copy / path).write_text(text.replace(of, by).rstrip() + "\n" + more)
    run(copy, "-m", "tests.unit.flag_matrix", "--write")
    commit(copy, "a flag")
    changed = git(copy, "show", "--name-only", "--format=", "HEAD").splitlines()
    assert changed == sorted([*FLAG, TABLE])
    diff = git(copy, "show", "--unified=0", "--format=", "HEAD", "--", TABLE).splitlines()
    rows = [line for line in diff[4:] if not line.startswith("@@")]
    assert rows
    assert all(row.startswith("+--ref-log-interval") for row in rows), rows
    run(copy, "-c", HAS_FLAG)
    unread = f"{READS}::test_what_is_said_to_be_unread_reaches_none"
    run(copy, "-m", "pytest", *QUIETLY, IS_READ, unread)


def test_every_folder_is_a_recipe() -> None:
    folders = {path.name for path in HERE.iterdir() if path.is_dir()} - {"__pycache__"}
    assert folders == RECIPES.keys()


def run(folder: Path, *words: str) -> None:
    env = os.environ | {"PYTHONPATH": str(folder), "HYPOTHESIS_STORAGE_DIRECTORY": str(folder)}
    env["AGENTRL_TESTS"] = "full"  # what was added has no day of its own
    result = subprocess.run(
        [sys.executable, "-B", *words],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert result.returncode == 0, f"{result.stdout[-3000:]}{result.stderr[-2000:]}"


def commit(folder: Path, message: str) -> None:
    git(folder, "add", "--all")
    who = ("-c", "user.name=recipe", "-c", "user.email=recipe@example.org")
    git(folder, *who, "commit", "--quiet", "--message", message)


def git(folder: Path, *words: str) -> str:
    return subprocess.run(
        ["git", "-C", str(folder), *words], check=True, capture_output=True, text=True
    ).stdout
