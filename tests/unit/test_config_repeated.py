"""A flag that is given twice: the last value holds, the other is named; evaluation sets add up."""

from pathlib import Path

import pytest

from agentrl.config.command_line import read_flags
from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.config.resolve import Resolved, parse
from agentrl.config.run import RunConfig
from agentrl.envs.registry import load_env
from agentrl.envs.tasks import open_eval_sets
from agentrl.errors import ConfigError

ENV = load_env("single-turn")


@pytest.mark.parametrize(
    ("flags", "note"),
    [
        ("--lr 1e-5 --lr 1e-6", "--lr is given 2 times: 1e-6 holds, the last, and not 1e-5"),
        (
            "--use-tis --no-use-tis --use-tis",
            "--use-tis is given 3 times: on holds, the last, and not off",
        ),
        (
            "--rollout-stop-token-ids 5 7 --rollout-stop-token-ids 9",
            "--rollout-stop-token-ids is given 2 times: 9 holds, the last, and not 5 7",
        ),
        (
            "--sglang-mem-fraction-static 0.5 --sglang-mem-fraction-static 0.7",
            "--sglang-mem-fraction-static is given 2 times: 0.7 holds, the last, and not 0.5",
        ),
        (
            "--recompute-num-layers 1 --recompute-num-layers 2 --recompute-num-layers 3",
            "--recompute-num-layers is given 3 times: 3 holds, the last, and not 1 or 2",
        ),
    ],
)
def test_the_last_value_holds_and_the_note_names_both(flags: str, note: str) -> None:
    assert read_flags(flags.split()).notes == [note]


def test_the_note_stands_at_the_start_of_the_run() -> None:
    resolved = parse(["--lr", "1e-5", "--lr", "1e-6"], "train_async")
    assert resolved.config.lr == 1e-6
    assert any(note.startswith("--lr is given 2 times") for note in resolved.notes)


def test_the_last_file_holds(tmp_path: Path) -> None:
    for name, rate in (("a", "1e-5"), ("b", "1e-6")):
        (tmp_path / f"{name}.toml").write_text(f"lr = {rate}\n")
    files = [word for name in "ab" for word in ("--config", str(tmp_path / f"{name}.toml"))]
    resolved = parse(files, "train_async")
    assert resolved.config.lr == 1e-6
    assert any(note.startswith("--config is given 2 times") for note in resolved.notes)


@pytest.mark.parametrize("flags", ["--lr 1e-5 --lr 1e-5", "--use-tis --use-tis", "--lr 1e-5"])
def test_what_is_said_again_is_nothing_to_tell(flags: str) -> None:
    assert read_flags(flags.split()).notes == []


# ---- --eval-prompt-data -------------------------------------------------------------------------


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Rows to train on and to score on, in the current directory."""
    monkeypatch.chdir(tmp_path)
    for name, count in (("train", 1), ("a", 1), ("b", 2), ("c", 3)):
        (tmp_path / f"{name}.jsonl").write_text('{"input": "q", "label": "a"}\n' * count)
    return tmp_path


def resolved(flags: str) -> Resolved:
    model = str(PRESETS[DEFAULT].values["hf_checkpoint"])
    base = f"--hf-checkpoint {model} --prompt-data train.jsonl --n-samples-per-prompt 4"
    words = f"{base} --rollout-max-response-len 64 --device cpu {flags}"
    return parse(words.split(), "train_async")


def sizes(config: RunConfig) -> dict[str, int]:
    return {name: len(tasks) for name, tasks in open_eval_sets(config, ENV).items()}


@pytest.mark.parametrize(
    "flags",
    [
        "--eval-prompt-data a a.jsonl --eval-prompt-data b b.jsonl c c.jsonl",
        "--eval-prompt-data a a.jsonl b b.jsonl --eval-prompt-data c c.jsonl",
        "--eval-prompt-data a a.jsonl b b.jsonl c c.jsonl",
    ],
)
def test_sets_that_are_named_one_after_the_other_are_all_played(rows: Path, flags: str) -> None:
    found = resolved(flags)
    assert sizes(found.config) == {"a": 1, "b": 2, "c": 3}
    assert not any("holds, the last" in note for note in found.notes)
    told = any("is given 2 times: all that it names holds" in note for note in found.notes)
    assert told == (flags.count("--eval-prompt-data") == 2)


def test_a_path_alone_is_a_set_with_the_name_that_slime_gives_it(rows: Path) -> None:
    found = resolved("--eval-prompt-data b.jsonl")
    assert sizes(found.config) == {"aime": 2}
    assert any("b.jsonl: a path alone is a set that is called aime" in n for n in found.notes)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--eval-prompt-data a a.jsonl b", "--eval-prompt-data has 3 words (a a.jsonl b); it wan"),
        (
            "--eval-prompt-data a.jsonl --eval-prompt-data b.jsonl",
            "--eval-prompt-data a.jsonl: of a flag that is given 2 times, each wants its words in",
        ),
        (
            "--eval-prompt-data a a.jsonl b --eval-prompt-data b.jsonl",
            "--eval-prompt-data a a.jsonl b: of a flag that is given 2 times, each wants its words",
        ),
        ("--eval-prompt-data a a.jsonl --eval-prompt-data a b.jsonl", "names a twice; names mus"),
        ("--eval-prompt-data heldout", "--eval-prompt-data heldout: there is no file"),
        ("--eval-prompt-data a a.jsonl --eval-prompt-data b x.jsonl", "x.jsonl: there is no file"),
    ],
)
def test_words_that_are_no_sets_are_refused(rows: Path, flags: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolved(f"{flags} --max-turns 0")
    assert said in str(caught.value)
    assert "--max-turns" in str(caught.value)  # nothing else is hidden by it


def test_a_file_may_name_a_set_by_its_path_alone_too(rows: Path) -> None:
    (rows / "c.toml").write_text('eval_prompt_data = ["b.jsonl"]\n')
    assert sizes(resolved("--config c.toml").config) == {"aime": 2}
