"""Tools and rewards by name, as environments: only what is asked for is imported."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentrl import load_env
from agentrl.envs.messages import AssistantTurn
from agentrl.envs.named import load_reward, load_tool
from agentrl.envs.rewards.exact import exact
from agentrl.errors import ConfigError
from agentrl.tools.fetch import fetch
from agentrl.user_code import load_once

pytestmark = pytest.mark.anyio

SOURCE = """
from agentrl import tool

@tool
async def double(number: int) -> int:
    '''Double a number.'''
    return 2 * number

@tool
async def method(self, number: int) -> int:
    return number

def length(text, label, task):
    return len(text) + len(label) + len(task)

async def judge(text, label, task):
    return 0.25

def one(text):
    return 1.0
"""
Install = Callable[[str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """A package `brings` with entry points: (source of its module, lines of entry_points.txt)."""
    monkeypatch.syspath_prepend(tmp_path)

    def written(source: str, points: str) -> None:
        (tmp_path / "brings_module.py").write_text(source)
        info = tmp_path / "brings-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Name: brings\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(points)
        importlib.invalidate_caches()

    yield written
    sys.modules.pop("brings_module", None)
    load_tool.cache_clear()
    load_once.cache_clear()


POINTS = """
[agentrl.tools]
double = brings_module:double
broken = no_such_module:double
fetch = brings_module:double
notatool = brings_module:length
[agentrl.rewards]
length = brings_module:length
referee = brings_module:judge
short = brings_module:one
exact = brings_module:one
"""


def test_agentrl_brings_some() -> None:
    assert load_tool("fetch") is fetch
    assert load_reward("exact") is exact
    assert exact(" a\n", "a", {}) == 1.0


def test_a_package_offers_tools_and_rewards(install: Install) -> None:
    install(SOURCE, POINTS)
    assert "brings_module" not in sys.modules
    assert load_tool("double").spec.description == "Double a number."
    assert load_tool("double") is load_tool("brings_module:double")
    assert load_reward("length")("ab", "c", {}) == 3
    assert load_reward("brings_module.length") is load_reward("length")


@pytest.mark.parametrize(
    ("load", "name", "message"),
    [
        (load_tool, "doubl", "there is no tool 'doubl'; did you mean 'double'"),
        (
            load_tool,
            "zzz",
            "there is no tool 'zzz'; known: broken, calculator, double, fetch, notatool",
        ),
        (load_tool, "broken", r"tool 'broken' of brings \(.*\) is broken: cannot import no_such"),
        (load_tool, "fetch", "tool 'fetch' is claimed by agentrl and by brings .* say which with"),
        (load_tool, "notatool", "not a tool; write `@tool` above the function"),
        (load_tool, "brings_module:duoble", "has no 'duoble'; did you mean 'double'"),
        (load_tool, "brings_module:method", "takes `self`: it works as a method of its Env alone"),
        (load_reward, "exact", "reward 'exact' is claimed by agentrl and by brings"),
        (load_reward, "short", r"not a function that can be called as `reward\(text, label, task"),
        (load_reward, "brings_module:double", "not a function that can be called as"),
        (load_reward, "lenght", "there is no reward 'lenght'; did you mean 'length'"),
        (load_reward, "no/such.py:fn", "there is no file"),
        (load_reward, "remote_rm", "asks a model; give it with --rm-type remote_rm"),
        (load_reward, "judge", "asks a model; give it with --rm-type judge"),
        (load_reward, "zzz", "known: .*exact, f1, gpqa, ifbench, length, math, nothing"),
    ],
)
def test_what_cannot_be_loaded_is_said(
    install: Install, load: Callable[[str], object], name: str, message: str
) -> None:
    install(SOURCE, POINTS)
    load_tool.cache_clear()
    load_once.cache_clear()
    with pytest.raises(ConfigError, match=message):
        load(name)


@pytest.mark.parametrize(("reward", "worth"), [("length", 2 + 1 + 2), ("referee", 0.25)])
async def test_single_turn_takes_another_reward(
    install: Install, reward: str, worth: float
) -> None:
    install(SOURCE, POINTS)
    env = load_env("single-turn")(reward=reward)
    assert env.reward_reads_text_only is None
    await env.reset(seed=0, task={"input": "q", "label": "a"})
    step = await env.step(AssistantTurn("ab", [], None, "stop", 0))
    assert step.reward == worth


async def test_tools_are_asked_for_by_name(install: Install) -> None:
    install(SOURCE, POINTS)
    env = load_env("tools")(tools=["double", "agentrl.tools.fetch:fetch"])
    assert list(env.tools) == ["double", "fetch"]
    assert env.reward_reads_text_only
    await env.reset(seed=0, task={"input": "q", "label": "a"})
    assert (await env.step(AssistantTurn("a", [], None, "stop", 0))).reward == 1.0
    await env.close()
    with pytest.raises(ConfigError, match="two tools are named 'double'"):
        load_env("tools")(tools=["double", "double"])


def test_a_reward_of_another_signature_is_refused_by_the_name_of_its_flag(tmp_path: Path) -> None:
    place = tmp_path / "mine.py"
    place.write_text("def reward(args, sample, more):\n    return 1.0\n")
    said = rf"^--custom-rm-path {place}: .*write `def reward\(text, label, task\):`, "
    said += r"or slime's `def reward\(args, sample\):`"
    with pytest.raises(ConfigError, match=said):
        load_reward(str(place))
