"""The mechanism of functions that the learner calls: which are taken, when, and how they fail."""

import re
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agentrl.cli import train
from agentrl.config.resolve import parse
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError, HookError
from agentrl.learner.hooks import AFTER_WRITE, INIT, KINDS, SAMPLE_FILTER, LearnerHooks
from tests.collectives import Threads

pytestmark = pytest.mark.slow

HEADS = {
    field: re.search(r"\((.*)\)", kind.must_be)[1]  # type: ignore[index]
    for field, kind in KINDS.items()
}


def hooks_of(tmp_path: Path, body: str, field: str = INIT) -> LearnerHooks:
    text = "".join(f"    {line}\n" for line in body.splitlines())
    (tmp_path / "mine.py").write_text(f"import sys\n\ndef mine({HEADS[field]}):\n{text}")
    flags: dict[str, Any] = {field: f"{tmp_path}/mine.py:mine"}
    return LearnerHooks(RunConfig(**flags))


def alone(value: Any) -> list[Any]:
    return [value]


@pytest.mark.parametrize("field", KINDS)
def test_a_function_of_another_signature_is_refused_by_a_dry_run(
    field: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(f"def fits({HEADS[field]}): ...\n\n\ndef wrong({HEADS[field]}, more): ...\n")
    flag = KINDS[field].flag
    argv = ["--preset", "search-r1-local", "--device", "cpu", "--dry-run", flag]
    if field == AFTER_WRITE:
        shared = ["--update-weight-disk-dir", str(tmp_path)]
        argv = ["--update-weight-transport", "disk", *shared, *argv]
    assert train.main([*argv, f"{file}:fits"], "train_async") == 0
    capsys.readouterr()
    assert train.main([*argv, f"{file}:wrong"], "train_async") == 2
    said = capsys.readouterr().err
    assert f"{flag} {file}:wrong: " in said
    assert re.search(rf"mine\.py:4\).*write `def \w+\({HEADS[field]}\):`", said)


@pytest.mark.parametrize("field", sorted(KINDS.keys() - {AFTER_WRITE}))
def test_a_run_that_trains_nothing_takes_none_but_that_of_pushes(field: str) -> None:
    with pytest.raises(ConfigError, match=f"{KINDS[field].flag}: an evaluation scores"):
        parse([KINDS[field].flag, "mine:mine", "--eval-only"], "train_async")


def test_a_run_that_names_none_calls_none() -> None:
    assert LearnerHooks(RunConfig()).call(INIT, alone) == []


def test_args_has_the_flags_of_the_run(tmp_path: Path) -> None:
    hooks = hooks_of(tmp_path, "sys.seen = (args.n_samples_per_prompt, args.rewards_normalization)")
    hooks.call(INIT, alone)
    assert sys.seen == (RunConfig().n_samples_per_prompt, True)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("pass\nraise KeyError('x')", r"KeyError: 'x' \(\S*mine\.py:5\)"),
        ("sys.exit(3)", r"SystemExit: 3 \(\S*mine\.py:4\)"),
        ("open('/nowhere/at-all')", r"FileNotFoundError: .* \(\S*mine\.py:4\)"),
        ("args.no_such_flag", r"AttributeError: args has no 'no_such_flag': .* \(\S*mine\.py:4\)"),
    ],
)
def test_what_a_function_raises_ends_the_run_with_its_line(
    body: str, said: str, tmp_path: Path
) -> None:
    hooks = hooks_of(tmp_path, body)
    with pytest.raises(HookError, match=rf"^--custom-megatron-init-path \S+mine\.py:mine: {said}$"):
        hooks.call(INIT, alone)


def in_ranks(num: int, rank: Callable[[int, Callable[[Any], list[Any]]], Any]) -> list[Any]:
    """What each rank returned or raised."""
    group = Threads(num)

    def run(index: int) -> Any:
        try:
            return rank(index, lambda value: group.gather(index, value))
        except HookError as error:
            return str(error)

    with ThreadPoolExecutor(num) as threads:
        return list(threads.map(run, range(num)))


def test_what_one_rank_raises_is_raised_on_all(tmp_path: Path) -> None:
    hooks = hooks_of(tmp_path, "if groups == 1:\n    raise ValueError('not here')", SAMPLE_FILTER)
    found = in_ranks(3, lambda rank, gather: hooks.call(SAMPLE_FILTER, gather, rank))
    own = f"--rollout-sample-filter-path {tmp_path}/mine.py:mine: ValueError: not here"
    assert found[1].startswith(own)
    assert found[1].endswith("mine.py:5)")
    assert found[0] == found[2] == f"learner rank 1: {found[1]}"


def test_every_rank_gets_what_all_have_read(tmp_path: Path) -> None:
    hooks = hooks_of(tmp_path, "pass")
    found = in_ranks(2, lambda rank, gather: hooks.call(INIT, gather, read=lambda: [rank]))
    assert found == [[[0], [1]]] * 2
