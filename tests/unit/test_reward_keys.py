"""A reward that is a dict: which key is trained, which one scores, and what is refused."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.config.resolve import parse
from agentrl.envs.messages import AssistantTurn
from agentrl.envs.registry import load_env
from agentrl.envs.reward_keys import chosen, parts
from agentrl.errors import ConfigError, EnvError

MODEL = str(PRESETS[DEFAULT].values["hf_checkpoint"])
REWARDS = """
def both(text, label, task):
    return {"score": 1 if text == label else -1, "acc": text == label, "said": text}

async def later(text, label, task):
    return {"score": 0.25, "acc": 0.75}

def number(text, label, task):
    return 1.0
"""


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(REWARDS)
    Path("rows.jsonl").write_text('{"input": "One and one?", "label": "2"}\n')


def words(flags: str) -> list[str]:
    base = f"--hf-checkpoint {MODEL} --prompt-data rows.jsonl --n-samples-per-prompt 4"
    base += " --rollout-max-response-len 64 --device cpu --eval-prompt-data held rows.jsonl"
    return f"{base} {flags}".split()


def played(flags: str, text: str, *, is_evaluation: bool = False) -> tuple[float, dict[str, float]]:
    """Reward and metrics of an answer in one turn."""
    config = parse(words(flags), "train_async").config

    async def play() -> tuple[float, dict[str, float]]:
        env = load_env(str(config.env))(**config.env_args)
        env.is_evaluation = is_evaluation
        await env.reset(seed=0, task={"input": "One and one?", "label": "2"})
        step = await env.step(AssistantTurn(text, [], None, "stop", 0))
        assert step.terminated
        return step.reward, step.metrics

    return anyio.run(play)


@pytest.mark.parametrize("env", ["single-turn", "tools"])
def test_one_key_is_trained_and_another_may_be_the_score(env: str) -> None:
    flags = f"--env {env} --custom-rm-path mine.py:both --reward-key score"
    assert played(flags, "2") == (1.0, {"reward.score": 1.0, "reward.acc": 1.0})
    assert played(flags, "3") == (-1.0, {"reward.score": -1.0, "reward.acc": 0.0})
    assert played(flags, "3", is_evaluation=True)[0] == -1.0
    flags += " --eval-reward-key acc"
    assert played(flags, "3")[0] == -1.0
    assert played(flags, "3", is_evaluation=True)[0] == 0.0


def test_a_reward_may_be_awaited() -> None:
    flags = "--custom-rm-path mine.py:later --reward-key acc"
    assert played(flags, "x") == (0.75, {"reward.score": 0.25, "reward.acc": 0.75})


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--custom-rm-path mine.py:both", r"a dict of \['acc', 'said', 'score'\]: name what is"),
        ("--custom-rm-path mine.py:both --reward-key f1", "the reward has no 'f1'; its keys are"),
        ("--custom-rm-path mine.py:both --reward-key said", "both returned 'x'"),
        ("--custom-rm-path mine.py:number --reward-key score", "the reward is 1.0, and --reward-k"),
    ],
)
def test_what_has_no_such_number_is_an_error_of_the_env(flags: str, said: str) -> None:
    with pytest.raises(EnvError, match=said):
        played(flags, "x")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            "--reward-key score",
            "--reward-key: only a reward of --rm-type or --custom-rm-path, under",
        ),
        (
            "--eval-reward-key acc",
            "--eval-reward-key: only a reward of --rm-type or --custom-rm-path, of",
        ),
    ],
)
def test_a_key_without_a_reward_of_ones_own_is_refused(flags: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(words(flags), "train_async")


@pytest.mark.parametrize(
    ("reward", "found"),
    [
        (1.0, {}),
        ({"a": 1, 2: True, "s": "3", "n": None, "l": [1]}, {"reward.a": 1.0, "reward.2": 1.0}),
        ({"nan": float("nan"), "huge": 1e300}, {}),
    ],
)
def test_only_numbers_are_counted(reward: Any, found: dict[str, float]) -> None:
    assert parts(reward) == found


def test_a_plain_reward_is_itself() -> None:
    assert chosen(0.5, None) == 0.5
