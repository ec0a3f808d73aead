"""Before a run starts its functions that workers call are called, and what they raise is told."""

from pathlib import Path

import msgspec
import pytest

from agentrl.cli.reward_trial import try_rewards
from agentrl.cli.train import main
from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.config.resolve import parse
from agentrl.errors import ConfigError

MODEL = str(PRESETS[DEFAULT].values["hf_checkpoint"])
REWARDS = """
import asyncio, os, time
from agentrl.cli.hooks.one_turn import one_turn

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

def of_training(text, label, task):
    return float(task["n"])

def of_parts(text, label, task):
    return {"score": 1.0}

def by_variable(text, label, task):
    return float(os.environ["MINE"])

KEPT = []

async def of_one_loop(text, label, task):
    KEPT.append(asyncio.get_running_loop())
    assert all(loop is KEPT[0] for loop in KEPT)
    return 0.0

async def plays(args, sample, sampling_params):
    return await one_turn(args, sample, sampling_params)

async def plays_wrong(args, sample, sampling_params):
    return sample.promt

def leaves_out(args, rollout_id, data_source, evaluation=False):
    data_source.get_samples(args.rollout_batch_size)
    return []

def few(args, rollout_id, data_source, evaluation=False):
    return [group[1:] for group in data_source.get_samples(args.rollout_batch_size)]

class Kept:
    def __init__(self, args): pass
    def get_samples(self, num_samples): raise ValueError("asked")
    def save(self, rollout_id): self.at = rollout_id
    def load(self, rollout_id): self.at = rollout_id
"""


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(REWARDS)
    Path("rows.jsonl").write_text('{"input": "q", "label": "5", "n": 1}\n' * 2)
    Path("held.jsonl").write_text('{"input": "q", "label": "5"}\n')


def words(flags: str) -> list[str]:
    base = f"--hf-checkpoint {MODEL} --prompt-data rows.jsonl --n-samples-per-prompt 6"
    return f"{base} --rollout-max-response-len 64 --device cpu {flags}".split()


def tried(flags: str, limit_s: float = 60.0, *, dry_run: bool = True) -> list[str]:
    config = parse(words(flags), "train_async").config
    return try_rewards(config, limit_s, dry_run=dry_run)


def test_a_dry_run_is_refused_with_what_a_reward_raises(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(words("--custom-rm-path mine.py:misspelt --dry-run"), "train_async") != 0
    said = capsys.readouterr().err
    assert "--custom-rm-path mine.py:misspelt fails on the first row, on the answer '5': " in said
    assert "a sample has no 'respnse' here; it has label, " in said
    assert "(mine.py:9)" in said
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
        assert late.startswith(
            "--custom-rm-path mine.py:hangs was not tried to the end: it did not"
        )
        assert f"within {limit_s} s" in late
        if "(" in late:
            break
    assert "time.sleep(60)" in late


def test_a_run_that_is_to_start_is_refused_too(capsys: pytest.CaptureFixture[str]) -> None:
    nowhere = "--rollout-external-engine-addrs 127.0.0.1:1"  # so that nothing starts
    assert main(words(f"--custom-rm-path mine.py:misspelt {nowhere}"), "train_async") != 0
    assert "--custom-rm-path mine.py:misspelt fails on the first row" in capsys.readouterr().err


def test_code_that_a_run_has_called_is_not_tried_again_where_it_goes_on() -> None:
    config = parse(words("--custom-rm-path mine.py:misspelt"), "train_async").config
    on = msgspec.structs.replace(config, resume="runs/one")
    assert try_rewards(on, dry_run=False) == []
    with pytest.raises(ConfigError, match="fails on the first row"):
        try_rewards(on)


def test_on_a_cluster_it_is_a_note_for_workers_may_have_what_is_lacking_here() -> None:
    flags = "--custom-rm-path mine.py:misspelt --ray-address 127.0.0.1:1"
    (note,) = tried(flags, dry_run=False)
    assert note.startswith("--custom-rm-path mine.py:misspelt fails on the first row on this host,")


def test_variables_of_the_run_are_there() -> None:
    assert tried("--custom-rm-path mine.py:by_variable --env-vars MINE=3") == []


def test_a_source_that_keeps_its_place_is_asked_by_the_run_alone() -> None:
    flags = "--custom-rm-path mine.py:misspelt --data-source-path mine.py:Kept"
    assert tried(flags) == []


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--custom-rm-path mine.py:of_training", "KeyError: 'n'"),
        (
            "--custom-rm-path mine.py:of_parts --reward-key score --eval-reward-key acc",
            "the reward has no 'acc'",
        ),
    ],
)
def test_each_evaluation_set_is_tried(flags: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        tried(f"{flags} --eval-prompt-data held held.jsonl")
    assert "fails on the first row of evaluation set held, in an evaluation" in str(caught.value)


def test_a_set_with_a_reward_of_its_own_is_tried_with_that() -> None:
    Path("sets.yaml").write_text(
        "datasets:\n- {name: held, path: held.jsonl, custom_rm_path: mine.py:of_training}\n"
        "- {name: fine, path: held.jsonl, custom_rm_path: mine.py:fine}\n"
    )
    with pytest.raises(ConfigError) as caught:
        tried("--rm-type math --eval-config sets.yaml")
    (line,) = str(caught.value).splitlines()
    assert line.startswith("--custom-rm-path mine.py:of_training fails on the first row of evalua")


def test_training_and_evaluations_are_tried_in_one_event_loop() -> None:
    """A reward may keep a client, which is bound to it."""
    assert tried("--custom-rm-path mine.py:of_one_loop --eval-prompt-data held held.jsonl") == []


def test_a_function_that_plays_episodes_is_tried_with_its_reward() -> None:
    flags = "--apply-chat-template --eval-prompt-data held held.jsonl"
    fine = f"--custom-generate-function-path mine.py:plays {flags}"
    assert tried(f"{fine} --rm-type math") == []
    with pytest.raises(ConfigError, match="'Sample' object has no attribute 'promt'") as caught:
        tried(f"--custom-generate-function-path mine.py:plays_wrong {flags} --rm-type math")
    assert str(caught.value).startswith("--custom-generate-function-path mine.py:plays_wrong fails")
    with pytest.raises(ConfigError, match="no attribute 'respnse'") as caught:
        tried(f"{fine} --custom-rm-path mine.py:misspelt")
    both = "--custom-generate-function-path mine.py:plays or --custom-rm-path mine.py:misspelt"
    assert str(caught.value).startswith(f"{both} fails on the first row, ")


def test_a_function_that_plays_groups_is_tried_with_a_whole_group() -> None:
    flags = "--apply-chat-template --rm-type math"
    assert tried(f"--rollout-function-path mine.py:leaves_out {flags}") == []
    with pytest.raises(ConfigError, match="it returned 5 of the 6 episodes") as caught:
        tried(f"--rollout-function-path mine.py:few {flags}")
    assert str(caught.value).startswith("--rollout-function-path mine.py:few fails on the first")
    assert "`agentrl check-hook rollout-function-path mine.py:few`" in str(caught.value)
