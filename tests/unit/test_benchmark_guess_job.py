"""The benchmark of `guess`: what is run, its page, and the careless player."""

import random
import statistics
from pathlib import Path

import msgspec
import pytest

from agentrl.config.resolve import parse
from agentrl.envs.guess import Game
from agentrl.envs.guess.env import guess_in
from benchmarks import Row, guess_job
from scripts.guess import careless, guess_page
from tests.unit.small_job_results import result, shows_every_seed

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.anyio

HALVING = Row("halving: reward", 0.66, "mean of games")


def test_the_flags_are_those_of_a_run(tmp_path: Path) -> None:
    words = guess_job.JOB.flags_of(careless.SHAPE, 7, 30, tmp_path / "runs" / "seed-7")
    config = parse(words, "train_async").config
    assert (config.env, config.num_rollout, config.seed, config.rollout_seed) == ("guess", 30, 7, 7)
    assert (config.run_dir, config.run_id) == (str(tmp_path / "runs"), "seed-7")


def test_the_page_shows_every_seed_before_and_after_and_what_halving_is_worth() -> None:
    found = result(guess_job.JOB, HALVING)
    shows_every_seed(guess_page.PAGE, found, "Reward of held-out games, played greedily")
    assert "would be worth\n0.66." in guess_page.PAGE.markdown(found)


def test_halving_is_worth_what_the_readme_of_the_game_says() -> None:
    text = (ROOT / "agentrl" / "envs" / "guess" / "README.md").read_text()
    assert f"is worth about {guess_job.halving():.2f} on average" in text


async def test_the_careless_player_keeps_to_the_range_and_heeds_the_hints_now_and_then() -> None:
    recipe = careless.Recipe(steps=1, batch_size=1, creep=0.4, heed=0.2, lr=1.0, seed=0)
    rng = random.Random(0)
    heeded, crept = [], []
    for _ in range(300):
        messages = await careless.play(rng, recipe)
        first, *_ = messages
        low, high = (int(word.rstrip(".")) for word in first["content"].split()[-3::2])
        assert not Game(low, high, low).low > high
        start, end = low, high
        for said, told in zip(messages[1::2], messages[2::2], strict=False):
            guess = guess_in(said["content"])
            assert guess is not None
            assert start <= guess <= end
            heeded.append(low <= guess <= high)
            crept.append(guess == low)
            low, high = (guess + 1, high) if "low" in told["content"] else (low, guess - 1)
            low, high = max(low, start), min(high, end)
    assert 0.6 < statistics.fmean(heeded) < 0.95
    assert 0.4 < statistics.fmean(crept) < 0.7


async def test_games_are_made_alike_for_a_seed() -> None:
    recipe = careless.Recipe(steps=20, batch_size=4, creep=0.4, heed=0.2, lr=1.0, seed=5)
    games = await careless.games(recipe)
    assert games == await careless.games(recipe)
    assert games != await careless.games(msgspec.structs.replace(recipe, seed=6))
    assert len(games) == 80
