"""The warm start of the default job: its recipe is that of the shipped model, its runs are runs."""

import itertools
from pathlib import Path

import msgspec

from agentrl.config.resolve import parse
from scripts.default_job import warmstart
from scripts.default_job.places import MODEL_DIR


def test_what_is_not_said_is_as_the_shipped_model_was_made() -> None:
    record = msgspec.json.decode((MODEL_DIR / "training.json").read_bytes())
    assert msgspec.to_builtins(warmstart.Recipe()) == record["recipe"]


def test_each_lesson_is_a_run_of_supervised_learning(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"messages": []}\n')
    recipe = warmstart.Recipe()
    for lesson, num_rollout in zip(warmstart.lessons(recipe), (400, 100, 50), strict=True):
        own = {"prompt-data": tmp_path / "rows.jsonl", "hf-checkpoint": MODEL_DIR}
        flags = warmstart.flags_of(lesson, recipe) | own
        words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
        config = parse(words, "train_async").config
        assert (config.loss_type, config.num_rollout) == ("sft_loss", num_rollout)
        assert (config.lr, config.seed) == (lesson.lr, lesson.seed)


def test_the_habit_is_mostly_hasty_and_the_lessons_before_it_never_are() -> None:
    recipe = warmstart.Recipe(steps=8, copy_steps=8, habit_steps=8)
    hasty = []
    for lesson in warmstart.lessons(recipe):
        shown = list(itertools.islice(warmstart.demonstrations(lesson, recipe), 128))
        assert shown == list(itertools.islice(warmstart.demonstrations(lesson, recipe), 128))
        hasty.append(sum(len(messages) == 2 for messages in shown) / len(shown))
    assert hasty[:2] == [0, 0]
    assert 0.4 < hasty[2] < 0.95
