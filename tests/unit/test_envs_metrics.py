"""What an Env says of the metrics that it counts."""

import pytest

from agentrl import Env, Rollout, rollout
from agentrl.envs.check.signatures import check_class
from agentrl.envs.messages import Message
from agentrl.envs.registry import MADE_ENV
from agentrl.errors import ConfigError


class Game(Env):
    metrics = {"bad_moves": "moves that the rules forbid", "moves": "moves of an episode"}  # noqa: RUF012

    async def reset(self, *, seed: int, task: dict[str, object]) -> list[Message]:
        return [Message.user("?")]

    async def score(self, text: str) -> float:
        return 0.0


class Chess(Game):
    metrics = {"moves": "moves of both sides"}  # noqa: RUF012


def test_those_of_base_classes_hold_too() -> None:
    assert Env.described_metrics() == {}
    assert Chess.described_metrics() == {
        "bad_moves": "moves that the rules forbid",
        "moves": "moves of both sides",
    }


def test_a_rollout_says_so_as_a_class_or_above_its_function() -> None:
    class Agent(Rollout):
        metrics = {"calls": "calls of an episode"}  # noqa: RUF012

    @rollout("lab/metrics-said", metrics={"calls": "calls of an episode"})
    async def solve(task: dict[str, object], chat: object) -> float:
        return 0.0

    for cls in (Agent, vars(solve)[MADE_ENV]):
        assert cls.described_metrics() == {"calls": "calls of an episode"}


def test_what_is_no_phrase_is_refused_before_anything_starts() -> None:
    class Wrong(Game):
        metrics = {"moves": 3}  # type: ignore[dict-item]  # noqa: RUF012

    with pytest.raises(ConfigError, match=r"Wrong.metrics has 'moves': 3; write what the metric"):
        check_class(Wrong)


def test_an_attribute_of_that_name_that_is_no_mapping_is_the_class_own_business() -> None:
    class Old(Game):
        def metrics(self) -> list[str]:  # type: ignore[override]
            return []

    check_class(Old)
    assert Old.described_metrics() == Game.described_metrics()
