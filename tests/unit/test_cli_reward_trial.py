"""A dry run calls the function of --custom-rm-path, and tells what it raises."""

from pathlib import Path

import pytest

from agentrl.cli.reward_trial import try_rewards
from agentrl.cli.train import main
from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.config.resolve import parse
from agentrl.errors import ConfigError

MODEL = str(PRESETS[DEFAULT].values["hf_checkpoint"])
REWARDS = """
import os, time

async def fine(args, sample, **kwargs):
    return float(len(sample.tokens) >= sample.response_length)

def misspelt(args, sample):
    return float(len(sample.respnse))

def by_tokens(args, samples):
    return [float(len(sample.tokens)) for sample in samples]

def as_many(args, samples):
    assert len(samples) == args.n_samples_per_prompt
    return [0.0 for _ in samples]

def away(args, sample):
    raise ConnectionRefusedError("the judge is away")

def ends(args, sample):
    os._exit(3)

def hangs(args, sample):
    time.sleep(60)

def mixed(args, samples):
    assert len(samples) == args.n_samples_per_prompt
    return len({sample.reward for sample in samples}) > 1

def by_length(args, samples):
    return min(len(sample.respnse) for sample in samples) > 0

def forgets(rewards, task):
    task.row["label"]

def asks(rewards, task):
    raise ConnectionRefusedError("nobody is there")

def leaves(rewards, task):
    os._exit(3)
"""


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(REWARDS)
    Path("rows.jsonl").write_text('{"input": "q", "label": "5"}\n' * 2)


def words(flags: str) -> list[str]:
    base = f"--hf-checkpoint {MODEL} --prompt-data rows.jsonl --n-samples-per-prompt 6"
    return f"{base} --rollout-max-response-len 64 --device cpu {flags}".split()


def tried(flags: str, limit_s: float = 60.0) -> list[str]:
    return try_rewards(parse(words(flags), "train_async").config, limit_s)


def test_a_dry_run_is_refused_with_what_a_reward_raises(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(words("--custom-rm-path mine.py:misspelt --dry-run"), "train_async") != 0
    said = capsys.readouterr().err
    assert "--custom-rm-path mine.py:misspelt fails on the first row, on the answer '5': " in said
    assert "a sample has no 'respnse' here; it has index, label, " in said
    assert "(mine.py:8)" in said
    assert "`agentrl check-hook custom-rm-path mine.py:misspelt` tries it alone" in said


def test_a_reward_that_scores_is_not_spoken_of(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words("--custom-rm-path mine.py:fine --dry-run"), "train_async") == 0
    assert "on the first row" not in capsys.readouterr().out
    assert tried("--custom-rm-path mine.py:as_many --group-rm") == []
    assert tried("--rm-type math") == []


def test_what_a_sample_of_a_group_lacks_is_told_by_a_dry_run() -> None:
    with pytest.raises(ConfigError, match="a sample has no 'tokens' here") as caught:
        tried("--custom-rm-path mine.py:by_tokens --group-rm")
    assert "`agentrl check-hook group-rm mine.py:by_tokens`" in str(caught.value)


@pytest.mark.parametrize("reward", ["--custom-rm-path mine.py:fine", "--rm-type math"])
def test_a_filter_is_asked_about_a_group_of_the_first_row(reward: str) -> None:
    assert tried(f"{reward} --dynamic-sampling-filter-path mine.py:mixed") == []
    for name, said in (("by_length", "no 'respnse' here"), ("forgets", "it returned NoneType")):
        with pytest.raises(ConfigError, match=said) as caught:
            tried(f"{reward} --dynamic-sampling-filter-path mine.py:{name}")
        told = str(caught.value)
        assert told.startswith(f"--dynamic-sampling-filter-path mine.py:{name} fails on the first")
        assert f"`agentrl check-hook dynamic-sampling-filter-path mine.py:{name}`" in told


def test_a_filter_whose_service_is_away_is_a_note() -> None:
    (note,) = tried("--rm-type math --dynamic-sampling-filter-path mine.py:asks")
    assert note.startswith("--dynamic-sampling-filter-path mine.py:asks could not be tried on the")
    assert "nobody is there" in note


def test_a_process_that_ends_was_ended_by_the_reward_or_by_the_filter() -> None:
    path = "--dynamic-sampling-filter-path mine.py:leaves"
    with pytest.raises(ConfigError, match="it ended the process") as caught:
        tried(f"--custom-rm-path mine.py:fine {path}")
    assert str(caught.value).startswith(f"--custom-rm-path mine.py:fine or {path} fails on the")
    with pytest.raises(ConfigError) as caught:
        tried(f"--rm-type math {path}")
    assert str(caught.value).startswith(f"{path} fails on the first row, it ended the process")


def test_a_reward_that_ends_its_process_is_refused() -> None:
    with pytest.raises(ConfigError, match="it ended the process; raise an error in its place"):
        tried("--custom-rm-path mine.py:ends")


def test_a_service_that_is_away_and_a_call_without_end_are_notes() -> None:
    (away,) = tried("--custom-rm-path mine.py:away")
    assert away.startswith("--custom-rm-path mine.py:away could not be tried on the first row: ")
    assert "the judge is away" in away
    for limit_s in (2, 20, 55):  # on a busy machine the call may not have begun in time
        (late,) = tried("--custom-rm-path mine.py:hangs", limit_s)
        told = f"--custom-rm-path mine.py:hangs did not come to an end within {limit_s} s"
        assert late.startswith(told)
        if "(" in late:
            break
    assert "time.sleep(60)" in late
