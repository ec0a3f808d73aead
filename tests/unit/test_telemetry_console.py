"""What the recorder says on the console beside its files: failures, dropped groups, scores and
rewards that never differ."""

import io
import json
from pathlib import Path
from typing import Any

from agentrl.telemetry.recorder import Recorder
from tests.manual_clock import ManualClock
from tests.unit.recorder_ground import STRICT, evaluation, lines, run_dir, settings, step_data

__all__ = ["run_dir"]


def failures(env_errors: int, error: str, **counts: int) -> dict[str, Any]:
    """A `failures` event as the buffer sends it."""
    found = {"env_error": env_errors} if env_errors else {}
    first = {name: {"episode": "00000001/0#0", "worker": "w-7", "error": error} for name in found}
    facts = {"counts": found, "first": first, "played": 480, "retried": env_errors, "lost": 0}
    return facts | counts


def console_of(run_dir: Path, *events: dict[str, Any]) -> list[str]:
    stream = io.StringIO()
    config = settings(None)
    with Recorder(run_dir, config, ManualClock(), stream=stream, registry=STRICT) as recorder:
        for data in events:
            recorder.event("failures", data)
        recorder.finish("complete")
    return stream.getvalue().splitlines()


def test_the_first_env_error_is_told_with_its_words_and_all_of_them_once_more_at_the_end(
    run_dir: Path,
) -> None:
    told = console_of(
        run_dir,
        failures(1, "ValueError: no gold\n  for Luna"),
        failures(2, "ValueError: no gold\n  for Luna"),
        failures(3, "ValueError: no gold\n  for Luna"),
    )
    assert told == [
        (
            "note: an episode failed (env_error: ValueError: no gold for Luna); it is played again "
            f"on a fresh Env; see {run_dir}/logs/w-7.log"
        ),
        f"3 of 480 episodes failed and were played again (3 env_error); see {run_dir}/logs",
    ]


def test_an_engine_that_fails_is_no_error_of_the_env_and_is_told_at_the_end_only(
    run_dir: Path,
) -> None:
    lost = failures(0, "", retried=2, lost=1) | {"counts": {"engine_error": 4, "poison": 1}}
    assert console_of(run_dir, lost) == [
        (
            "2 of 480 episodes failed and were played again, 1 failed for good "
            f"(4 engine_error, 1 poison); see {run_dir}/logs"
        )
    ]


def test_what_failed_for_good_at_once_was_not_played_again(run_dir: Path) -> None:
    """An episode that took four workers down is charged with all of them together."""
    told = failures(1, "worker w-7 was lost", retried=0, lost=1)
    assert console_of(run_dir, told) == [
        (
            "note: an episode failed (env_error: worker w-7 was lost); it failed for good; see "
            f"{run_dir}/logs/w-7.log"
        ),
        f"1 of 480 episodes failed for good (1 env_error); see {run_dir}/logs",
    ]


def test_a_run_without_failures_says_nothing_of_them(run_dir: Path) -> None:
    assert console_of(run_dir) == []


def test_an_error_can_neither_fill_nor_drive_the_terminal(run_dir: Path) -> None:
    first, _ = console_of(run_dir, failures(1, "KeyError: \x1b[2J\x07\udce4" + "x" * 2000))
    assert first.isprintable()
    assert "KeyError: [2J xxx" in first
    assert "xxx...); it is played again" in first
    assert len(first) < 600


def test_rewards_that_never_differ_are_remarked_on_once(run_dir: Path) -> None:
    def step(number: int, std: float) -> dict[str, Any]:
        data = step_data(number)
        data["metrics"] |= {"rollout/reward_mean": 0.0, "rollout/reward_std": std}
        data["metrics"]["train/grad_norm"] = std
        return data

    stream = io.StringIO()
    config = settings(9)
    with Recorder(run_dir, config, ManualClock(), stream=stream, registry=STRICT) as recorder:
        for number, std in enumerate((0.0, 0.0, 0.1, 0.0, 0.0), start=1):
            recorder.event("step", step(number, std))
        assert "note" not in stream.getvalue()
        for number in (6, 7):
            recorder.event("step", step(number, 0.0))
    (note,) = [line for line in stream.getvalue().splitlines() if line.startswith("note")]
    assert note.startswith(
        "note: in each of the last 3 iterations all episodes had the same reward (0"
    )
    assert f"agentrl view {run_dir}" in note


def test_a_score_and_a_reward_say_how_their_turns_were_chosen(run_dir: Path) -> None:
    config, stream = settings(None), io.StringIO()
    other, third = ({"name": name} for name in ("other", "third"))
    with Recorder(run_dir, config, ManualClock(), stream=stream, registry=STRICT) as recorder:
        recorder.evaluation(0, evaluation(0.25, 0, 8), is_greedy=True)
        recorder.evaluation(0, evaluation(0.75, 0, 8) | other, is_greedy=False)
        recorder.event("step", step_data(1))
        recorder.evaluation(1, evaluation(0.5, 1, 8), is_greedy=True)
        recorder.evaluation(1, evaluation(None, None, 0) | third, is_greedy=True)
        assert recorder.epitaph("complete").endswith(
            ", nq 0.250 -> 0.500 greedy, other 0.750 sampled"
        )
        recorder.finish("interrupted")
    said = stream.getvalue()
    assert "evaluation nq: 0.250 greedy over 8 episodes" in said
    assert "evaluation other: 0.750 sampled over 8 episodes" in said
    assert "evaluation third: no score, for none of its episodes was done\n" in said
    assert "None" not in said
    assert "iteration 1  sampled reward 0.250 " in said
    with Recorder(run_dir, config, ManualClock(), stream=stream, registry=STRICT) as recorder:
        recorder.evaluation(1, evaluation(0.25, 1, 8) | other, is_greedy=True)
        assert recorder.epitaph("complete").endswith(
            ", nq 0.250 -> 0.500, other 0.750 -> 0.250 greedy"
        )


def test_an_evaluation_that_was_cut_off_is_no_score(run_dir: Path) -> None:
    stream = io.StringIO()
    config = settings(None)
    with Recorder(run_dir, config, ManualClock(), stream=stream, registry=STRICT) as recorder:
        recorder.evaluation(
            0, evaluation(0.9, 0, 3) | {"failed": 5, "cancelled": True}, is_greedy=True
        )
        recorder.finish("interrupted")
    assert stream.getvalue() == (
        "evaluation nq: 3 of 8 episodes were done when the run was stopped\n"
    )
    assert lines(run_dir) == []
    assert json.loads((run_dir / "summary.json").read_text())["eval"] == {}


def played(run_dir: Path, *events: tuple[str, dict[str, Any]]) -> list[str]:
    """What the console says of these events of the buffer."""
    stream = io.StringIO()
    config = settings(None)
    with Recorder(run_dir, config, ManualClock(), stream=stream, registry=STRICT) as recorder:
        recorder.continue_from({"trained": 90, "env_error": 5})
        for kind, data in events:
            recorder.event(kind, data)
    return stream.getvalue().splitlines()


def fates(reasons: dict[str, str], **counts: int) -> tuple[str, dict[str, Any]]:
    return "fates", {"counts": counts, "reasons": reasons, "too_long": 0, "minted": 0, "open": 0}


def batch(number: int) -> tuple[str, dict[str, Any]]:
    data = step_data(number)
    data["metrics"]["rollout/num_groups"] = 10
    return "step", data


def test_groups_that_were_dropped_are_said_in_the_line_of_their_iteration_with_the_cause(
    run_dir: Path,
) -> None:
    cause = "MaxTurnsError: Max turns (16)\x1b[2J exceeded " + "x" * 100
    told = played(
        run_dir,
        fates({"env_error": "an old one"}, env_error=6, trained=90),
        fates({"env_error": cause, "filtered": "zero_std_0"}, env_error=7, filtered=1, trained=90),
        batch(1),
        fates({}, env_error=7, filtered=1, trained=100, cancelled=4),
        batch(2),
        fates({"filtered": ""}, env_error=7, filtered=2, trained=100),
        batch(3),
    )
    assert "  3 of 13 groups dropped: env_error 2 (MaxTurnsError: Max turns (16) [2J" in told[0]
    assert "...), filtered 1 (zero_std_0)" in told[0]
    assert told[0].isprintable()
    assert "dropped" not in told[1]
    assert "1 of 11 groups dropped: filtered 1" in told[2]


def test_the_first_error_of_a_judge_or_filter_is_told_with_its_log(run_dir: Path) -> None:
    error = "the filter m:f failed: KeyError: 'gold' (f.py:3)"
    failed = ("scoring_failed", {"group": "00000007", "worker": "w-7", "error": error})
    (said,) = played(run_dir, failed, failed)
    assert said.startswith("note: a group was dropped, for its rewards or the filter failed ")
    assert said.endswith(f"(env_error: {error}); see {run_dir}/logs/w-7.log")
