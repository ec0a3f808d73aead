"""Each flag that names code takes it in each form, and refuses what it could not call."""

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agentrl.actors import group_scoring
from agentrl.actors.filters.check_reward_nonzero_std import check_reward_nonzero_std
from agentrl.algorithms import custom_advantages, custom_rewards
from agentrl.algorithms.correction import CORRECTIONS
from agentrl.algorithms.custom import LOSSES
from agentrl.algorithms.load import ESTIMATORS
from agentrl.cli import train
from agentrl.envs.named import load_reward, load_tool
from agentrl.envs.registry import load_env
from agentrl.errors import ConfigError
from agentrl.user_code import Kind, load, load_once

pytestmark = pytest.mark.slow

ENV = """
from agentrl import Env
class Mine(Env): ...
"""
TOOL = """
from agentrl import tool
@tool
async def mine(word: str) -> str:
    '''Say it again.'''
    return word
"""
REWARD = """
async def mine(text, label, task):
    return 1.0
"""
FILTER = """
def mine(rewards, task):
    return max(rewards) > 0
"""
CORRECTION = """
def mine(trained):
    return trained.mu_K
"""
REWARDS = """
def mine(groups):
    return [group.rewards for group in groups]
"""
ADVANTAGES = """
def mine(rows):
    return [row.columns["mu"] for row in rows]
"""
LOSS = """
def mine(micro_batch, logprobs_T, entropy_T):
    return logprobs_T.sum(), {}
"""

ALGORITHM = """
from agentrl.algorithms.base import Algorithm
class Mine(Algorithm):
    def values(self, rewards):
        return [reward - sum(rewards) / len(rewards) for reward in rewards]
"""


class Flag(NamedTuple):
    """How code that a flag names is loaded: by what, a source of it, its entry points."""

    load: Callable[[str], Any]
    source: str
    group: str
    name: str = "mine"


def written(kind: Kind[Any], spec: str) -> Any:
    """What the author wrote, of a hook that is called through an adapter."""
    return inspect.unwrap(load(kind, spec))


FLAGS = {
    "env": Flag(load_env, ENV, "agentrl.envs", "Mine"),
    "tool": Flag(load_tool, TOOL, "agentrl.tools"),
    "reward": Flag(load_reward, REWARD, "agentrl.rewards"),
    "filter": Flag(partial(load, group_scoring.FILTER), FILTER, "agentrl.filters"),
    "loss": Flag(partial(written, LOSSES), LOSS, "agentrl.losses"),
    "correction": Flag(partial(written, CORRECTIONS), CORRECTION, "agentrl.corrections"),
    "rewards": Flag(
        partial(written, custom_rewards.REWARDS), REWARDS, "agentrl.reward_post_processes"
    ),
    "advantages": Flag(
        partial(written, custom_advantages.ADVANTAGES), ADVANTAGES, "agentrl.advantages"
    ),
    "algorithm": Flag(partial(load, ESTIMATORS), ALGORITHM, "agentrl.algorithms", "Mine"),
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that is the current one and that Python imports from."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("users_code", None)
    load_tool.cache_clear()
    load_once.cache_clear()


@pytest.mark.parametrize("flag", FLAGS.values(), ids=FLAGS)
def test_code_is_given_as_a_file_a_module_or_a_name_that_a_package_announces(
    flag: Flag, home: Path
) -> None:
    (home / "users_code.py").write_text(flag.source)
    info = home / "brings-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: brings\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{flag.group}]\nours = users_code:{flag.name}\n")
    importlib.invalidate_caches()
    of_file = flag.load("users_code.py")
    assert of_file is flag.load(f"users_code.py:{flag.name}")
    assert flag.load("ours") is flag.load(f"users_code:{flag.name}") is not of_file
    with pytest.raises(ConfigError, match=r"there is no .* 'oars'; did you mean 'ours'\?"):
        flag.load("oars")
    with pytest.raises(ConfigError, match=f"has no '{flag.name}d'; did you mean '{flag.name}'"):
        flag.load(f"users_code.py:{flag.name}d")
    with pytest.raises(ConfigError, match=r"there is no .* 'users_code'; .* 'users_code.py'\?"):
        flag.load("users_code")
    with pytest.raises(ConfigError, match=r"there is no file .*absent.py"):
        flag.load("absent.py")


@pytest.mark.parametrize("flag", FLAGS.values(), ids=FLAGS)
def test_a_file_that_holds_none_or_several_is_refused_with_what_to_write(
    flag: Flag, home: Path
) -> None:
    (home / "several.py").write_text(flag.source + flag.source.replace(f" {flag.name}", " other"))
    with pytest.raises(ConfigError, match=rf"several.py defines 2 .*several.py:{flag.name}"):
        flag.load("several.py")
    (home / "empty.py").write_text("from agentrl import Env\nnumber = 3\n")
    with pytest.raises(ConfigError, match=r"empty.py defines no .*; write `"):
        flag.load("empty.py")


def test_a_filter_of_agentrl_s_own_has_a_name() -> None:
    assert load(group_scoring.FILTER, "check_reward_nonzero_std") is check_reward_nonzero_std
    assert (
        load(group_scoring.FILTER, "agentrl.actors.group_scoring.check_reward_nonzero_std")
        is check_reward_nonzero_std
    )


@pytest.mark.parametrize(
    ("flag", "head", "call"),
    [
        ("filter", "def f(rewards):", "keep(rewards, task)"),
        ("filter", "def f(rewards, task, bound):", "keep(rewards, task)"),
        ("filter", "def f(rewards, task, *, bound):", "keep(rewards, task)"),
        ("filter", "async def f(rewards, task):", "keep(rewards, task)"),
        ("filter", "def f(args, samples, bound):", "keep(rewards, task)"),
        ("loss", "def f(batch, logprobs):", "loss(micro_batch, logprobs_T, entropy_T)"),
        ("loss", "async def f(b, l, e):", "loss(micro_batch, logprobs_T, entropy_T)"),
        ("reward", "def f(prompt):", "reward(text, label, task)"),
    ],
)
def test_a_function_of_another_signature_is_refused_with_its_line_and_the_one_to_write(
    flag: str, head: str, call: str, home: Path
) -> None:
    (home / "users_code.py").write_text(f"\n\n{head}\n    return 0\n")
    with pytest.raises(ConfigError) as refused:
        FLAGS[flag].load("users_code.py:f")
    said = str(refused.value)
    assert f"is `{head[:-1]}` (users_code.py:3)" in said
    assert f"not a function that can be called as `{call}`; write `def {call}:`" in said
    theirs = {
        "filter": "keep(args, samples)",
        "loss": "loss(args, batch, logits, sum_of_sample_mean)",
        "reward": "reward(args, sample)",
    }[flag]
    assert said.endswith(f", or slime's `def {theirs}:`")


@pytest.mark.parametrize(
    ("flag", "head"),
    [
        ("filter", "def f(r, t):"),
        ("filter", "def f(*args):"),
        ("filter", "def f(rewards, task, bound=0.5, **more):"),
        ("loss", "def f(batch, logprobs, entropy):"),
        ("reward", "def f(text, label, task, *, strict=True):"),
    ],
)
def test_a_function_may_name_its_parameters_as_it_likes_and_have_more_with_defaults(
    flag: str, head: str, home: Path
) -> None:
    (home / "users_code.py").write_text(f"{head}\n    return 0\n")
    assert callable(FLAGS[flag].load("users_code.py:f"))


@pytest.mark.parametrize(
    "argv",
    [
        ["--dynamic-sampling-filter-path", "users_code.py:wrong"],
        ["--loss-type", "custom_loss", "--custom-loss-function-path", "users_code.py:wrong"],
    ],
)
def test_the_program_refuses_it_before_anything_starts(
    argv: list[str], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "users_code.py").write_text("def wrong(one):\n    return one\n")
    assert train.main([*argv, "--dry-run"], "train_async") == 2
    said = capsys.readouterr().err
    assert f"{argv[-2]} users_code.py:wrong: " in said
    assert "`def wrong(one)` (users_code.py:1), not a function that can be called as" in said


def test_a_module_that_lies_here_as_a_file_is_named_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Launch scripts of other trainers rely on PYTHONPATH."""
    (tmp_path / "rewards").mkdir()
    (tmp_path / "rewards" / "mine.py").write_text(REWARD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    for place in ("rewards.mine.mine", "rewards.mine:mine"):
        with pytest.raises(ConfigError, match=r"; did you mean 'rewards/mine.py:mine'\?$"):
            load_reward(place)
    (tmp_path / "lacking.py").write_text("import no_such_module\n")
    with pytest.raises(ConfigError, match=r"'no_such_module' \(\S*lacking.py:1\)$"):
        load_reward("lacking.py:mine")
    advice = r"; put its folder on PYTHONPATH, or name the file \(path/to/no_such.py\)$"
    with pytest.raises(ConfigError, match=f"No module named 'no_such'{advice}"):
        load_reward("no_such.mine")


def test_the_filter_of_slimes_scripts_is_the_one_that_ships() -> None:
    place = "slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std"
    assert load(group_scoring.FILTER, place) is check_reward_nonzero_std
