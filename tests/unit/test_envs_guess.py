"""`guess`: its rules, its games, and that it learns nothing from what it should not."""

import random
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.cli.main import main
from agentrl.envs import AssistantTurn, Step, load_env
from agentrl.envs.check.turns import HOSTILE
from agentrl.envs.guess import Game, GuessEnv, GuessSource, eval_tasks
from agentrl.envs.guess.env import guess_in
from agentrl.envs.guess.games import MAX_SPAN, MIN_SPAN
from agentrl.errors import ConfigError, EnvError

pytestmark = pytest.mark.anyio

TASK = {"low": 20, "high": 31, "number": 27}


def turn(text: str) -> AssistantTurn:
    return AssistantTurn(text, [], None, "stop", 0)


async def begun(task: dict[str, Any] = TASK, **args: int) -> GuessEnv:
    env = GuessEnv(**args)
    await env.reset(seed=0, task=task)
    return env


def said(step: Step) -> str:
    (message,) = step.messages
    assert message.role == "user"
    return message.content


async def test_a_game_gives_hints_until_the_number_is_found() -> None:
    env = GuessEnv()
    (prompt,) = await env.reset(seed=3, task=TASK)
    assert (prompt.role, prompt.content) == ("user", "Guess my number from 20 to 31.")
    steps = [await env.step(turn(text)) for text in ("25", "I think it is 29.", "27")]
    assert [said(step) for step in steps[:2]] == ["25 is too low.", "29 is too high."]
    assert [step.done for step in steps] == [False, False, True]
    assert steps[2].terminated
    assert [step.reward for step in steps] == [0.0, 0.0, pytest.approx(1 - 2 / 5)]
    assert steps[2].metrics["found"] == 1.0


async def test_each_further_guess_costs_the_same_and_the_last_one_still_pays() -> None:
    rewards = []
    for misses in range(4):
        env = await begun(max_guesses=4)
        for _ in range(misses):
            assert (await env.step(turn("20"))).reward == 0.0
        rewards.append((await env.step(turn("27"))).reward)
    assert rewards == [1.0, 0.75, 0.5, 0.25]


async def test_the_game_is_cut_when_the_guesses_run_out_and_pays_nothing() -> None:
    env = await begun(max_guesses=3)
    steps = [await env.step(turn(text)) for text in ("21", "hm", "22")]
    assert [step.truncated for step in steps] == [False, False, True]
    assert not any(step.terminated or step.reward for step in steps)
    assert [step.metrics["found"] for step in steps] == [0.0] * 3


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("", "Say a number from 20 to 31."),
        ("twenty", "Say a number from 20 to 31."),
        ("19", "19 is not from 20 to 31."),
        ("27 or 32", "32 is not from 20 to 31."),
        ("27" * 5, "Say a number from 20 to 31."),
    ],
)
async def test_what_is_no_guess_is_told_so_and_costs_one(text: str, answer: str) -> None:
    env = await begun()
    step = await env.step(turn(text))
    assert (said(step), step.done, step.metrics["illegal"]) == (answer, False, 1.0)
    found = await env.step(turn("27"))
    assert found.reward == pytest.approx(1 - 1 / 5)


async def test_guesses_that_the_hints_had_ruled_out_are_counted() -> None:
    env = await begun()
    steps = [await env.step(turn(text)) for text in ("25", "29", "24", "25", "27")]
    assert [step.metrics["unheeded"] for step in steps] == [0, 0, 1, 1, 0]


@given(text=st.text(max_size=60))
def test_a_guess_is_the_last_number_or_none(text: str) -> None:
    assert guess_in(text + " 31 ") == 31
    found = guess_in(text)
    assert found is None or re.search(rf"(?<![0-9])0*{found}(?![0-9])", text)


@pytest.mark.parametrize("text", HOSTILE)
async def test_hostile_text_is_a_guess_like_any_other(text: str) -> None:
    env = await begun()
    step = await env.step(turn(text))
    assert step.reward == 0.0
    assert not step.done
    assert re.fullmatch(r"Say a number from 20 to 31\.|[0-9]+ is not from 20 to 31\.", said(step))


async def test_a_saved_game_goes_on_with_its_guesses_and_its_hints() -> None:
    env, again = await begun(), GuessEnv()
    await env.step(turn("25"))
    await again.restore(await env.snapshot(), seed=0, task=TASK)
    for text in ("24", "27"):
        assert await env.step(turn(text)) == await again.step(turn(text))
    with pytest.raises(EnvError, match="no snapshot of a game"):
        await GuessEnv().restore(b"{", seed=0, task=TASK)


@pytest.mark.parametrize(
    "task", [{}, {"low": 1, "high": 9}, {"low": 1, "high": 9, "number": "5"}, TASK | {"number": 32}]
)
async def test_a_task_that_is_no_game_is_refused(task: dict[str, Any]) -> None:
    with pytest.raises(EnvError, match="the task"):
        await GuessEnv().reset(seed=0, task=task)


@pytest.mark.parametrize("max_guesses", [0, 65])
def test_a_number_of_guesses_out_of_bounds_is_refused(max_guesses: int) -> None:
    with pytest.raises(ConfigError, match=rf"max_guesses is {max_guesses}"):
        GuessEnv(max_guesses=max_guesses)


async def test_training_games_are_a_function_of_seed_and_index() -> None:
    source = GuessSource(5)
    tasks = [task async for task in GuessSource(5, num_tasks=40).tasks()]
    assert tasks == [source.task(index) for index in range(40)]
    assert await anext(source.tasks(17)) == tasks[17]
    assert tasks[0].row != GuessSource(6).task(0).row
    with pytest.raises(ConfigError, match="at least 1 task"):
        GuessSource(5, num_tasks=0)


def test_no_evaluated_game_is_ever_trained_on() -> None:
    evaluated = {msgspec.convert(task.row, Game) for task in eval_tasks()}
    source = GuessSource(0)
    trained = {msgspec.convert(source.task(index).row, Game) for index in range(4000)}
    assert len(evaluated) == len(eval_tasks()) == 256
    assert all(game.is_for_evaluation for game in evaluated)
    assert not any(game.is_for_evaluation for game in trained)
    assert eval_tasks() == eval_tasks()


def test_games_use_every_span_and_stay_within_ten_numbers() -> None:
    source = GuessSource(1)
    games = [msgspec.convert(source.task(index).row, Game) for index in range(2000)]
    spans = {game.high - game.low + 1 for game in games}
    assert spans == set(range(MIN_SPAN, MAX_SPAN + 1))
    assert min(game.low for game in games) // 10 == 10
    assert max(game.high for game in games) // 10 == 99
    assert all(game.low // 10 == game.high // 10 for game in games)
    assert all(game.low <= game.number <= game.high for game in games)


async def test_halving_the_range_always_wins_within_the_guesses() -> None:
    rewards = []
    for task in eval_tasks():
        env, low, high = await begun(task.row), task.row["low"], task.row["high"]
        while True:
            middle = (low + high) // 2
            step = await env.step(turn(str(middle)))
            assert not step.metrics["unheeded"]
            if step.done:
                break
            low, high = (middle + 1, high) if "low" in said(step) else (low, middle - 1)
        rewards.append(step.reward)
    assert min(rewards) > 0
    assert sum(rewards) / len(rewards) == pytest.approx(0.66, abs=0.01)


async def test_heeding_the_hints_pays() -> None:
    means = []
    for heeds in (False, True):
        rng, rewards = random.Random(0), []
        for task in eval_tasks():
            env, low, high = await begun(task.row), task.row["low"], task.row["high"]
            step = Step()
            while not step.done:
                guess = rng.randint(low, high)
                step = await env.step(turn(str(guess)))
                if heeds and step.messages:
                    is_low = "low" in said(step)
                    low, high = (guess + 1, high) if is_low else (low, guess - 1)
            rewards.append(step.reward)
        means.append(sum(rewards) / len(rewards))
    assert means[1] > means[0] + 0.2


def test_the_env_is_found_by_its_name_and_keeps_its_promises(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert load_env("guess") is GuessEnv
    assert main(["env", "check", "guess"]) == 0
    assert capsys.readouterr().out.endswith("GuessEnv: every promise is kept\n")
