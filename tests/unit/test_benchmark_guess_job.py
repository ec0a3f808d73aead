"""The benchmark of `guess`: what is run, what is told of it, and the careless player."""

import json
import random
import statistics
from importlib import import_module
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

from agentrl.config.resolve import parse
from agentrl.envs.guess import Game
from agentrl.envs.guess.env import guess_in

ROOT = Path(__file__).resolve().parents[2]
with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(ROOT)
    patch.syspath_prepend(ROOT / "scripts" / "default_job")
    patch.syspath_prepend(ROOT / "scripts" / "guess")
    from benchmarks import Row, guess_job

    careless, guess_page = map(import_module, ("careless", "guess_page"))

pytestmark = pytest.mark.anyio

EVAL = {"n": 256, "score": 0.4}


def metrics(rewards: list[float]) -> str:
    """A `metrics.jsonl` with an evaluation before and after."""
    lines: list[dict[str, Any]] = [{"step": 0, "eval": {"heldout": EVAL}}]
    lines += [
        {"step": step, "metrics": dict.fromkeys(guess_job.SAMPLED.values(), reward)}
        for step, reward in enumerate(rewards, start=1)
    ]
    last = EVAL | {"score": 0.6}
    lines.append({"step": len(rewards), "eval": {"heldout": last}})
    return "".join(json.dumps(line) + "\n" for line in lines)


def result(*seeds: int) -> dict[str, Any]:
    rows = [row for seed in seeds for row in guess_job.rows_of(metrics([0.3] * 12), seed)]
    rows.append(Row("halving: reward", 0.66, "mean of games"))
    made = [msgspec.structs.asdict(row) for row in rows]
    return {"machine": "a machine", "commit": "0123456789ab", "rows": made}


def test_the_flags_are_those_of_a_run(tmp_path: Path) -> None:
    words = guess_job.flags_of(careless.SHAPE, 7, 30, tmp_path / "runs" / "seed-7")
    config = parse(words, "train_async").config
    assert (config.env, config.num_rollout, config.seed, config.rollout_seed) == ("guess", 30, 7, 7)
    assert (config.run_dir, config.run_id) == (str(tmp_path / "runs"), "seed-7")


def test_rows_tell_of_evaluations_and_of_means_of_whole_windows() -> None:
    rewards = [0.1, 0.2, 0.3, 0.4, 0.5, *[0.6] * 5, 0.9]
    rows = {row.metric: row.value for row in guess_job.rows_of(metrics(rewards), 3)}
    assert rows["seed 3, greedy after 0: reward"] == 0.4
    assert rows["seed 3, greedy after 11: reward"] == 0.6
    assert rows["seed 3, sampled until 5: reward"] == pytest.approx(0.3)
    assert rows["seed 3, sampled until 10: reward"] == pytest.approx(0.6)
    assert rows["seed 3, sampled until 10: unheeded"] == pytest.approx(0.6)
    assert len([name for name in rows if "sampled" in name]) == 2 * len(guess_job.SAMPLED)


def test_the_page_shows_every_seed_before_and_after() -> None:
    page = guess_page.page(result(0, 1))
    for seed in (0, 1):
        assert f"| {seed} | Reward of held-out games, played greedily | 0.400 | 0.600 |" in page
    svg = ElementTree.fromstring(guess_page.picture(result(0, 1)))
    texts = ["".join(text.itertext()) for text in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert all(title in texts for title in guess_page.TITLES.values())


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


async def test_games_are_written_alike_for_a_seed_and_are_never_evaluated(tmp_path: Path) -> None:
    recipe = careless.Recipe(steps=20, batch_size=4, creep=0.4, heed=0.2, lr=1.0, seed=5)
    await careless.write_games(tmp_path / "one", recipe)
    await careless.write_games(tmp_path / "other", recipe)
    text = (tmp_path / "one").read_text()
    assert text == (tmp_path / "other").read_text()
    assert len(text.splitlines()) == 80
