"""`agentrl view` as a command: its output and exit codes, and that it only reads."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from agentrl.cli import main as cli
from agentrl.wire.messages import GroupScore, ScoreGroup
from tests.unit.viewed_run import ViewedRun, headings, trained

pytestmark = pytest.mark.slow


def test_the_sub_command_prints_and_writes_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(trained(tmp_path))
    assert cli.main(["view", run, "--last", "1", "--tokens"]) == 0
    shown = capsys.readouterr().out
    assert headings(shown) == ["00000003/1#0"]
    assert "-- tokens --" in shown
    assert cli.main(["view", run, "--html", str(tmp_path / "page.html")]) == 0
    assert capsys.readouterr().out == f"2 episodes in {tmp_path / 'page.html'}\n"
    made = (tmp_path / "page.html").read_text(encoding="utf-8")
    root = ElementTree.fromstring(made.removeprefix("<!DOCTYPE html>"))
    assert [h.text for h in root.iter("h2")] == ["episode 00000003/0#0", "episode 00000003/1#0"]


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (["--group", "00000009"], 65, "has no group 00000009"),
        (["--group", "x"], 65, "has no group x"),
        (["--lease", "4"], 65, "has no lease 4: its leases are numbered 1 to 3"),
        (["--html", "/dev/null/page"], 3, "--html /dev/null/page cannot be written"),
    ],
)
def test_what_cannot_be_shown_is_one_line_that_names_it(
    argv: list[str], code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["view", str(trained(tmp_path)), *argv]) == code
    assert said in capsys.readouterr().err


def test_no_run_and_a_missing_tokenizer_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["view", str(tmp_path / "nowhere")]) == 65
    assert "it is no run directory" in capsys.readouterr().err
    run = trained(tmp_path)
    (run / "config.toml").write_text('hf_checkpoint = "gone"\n')
    assert cli.main(["view", str(run)]) == 3
    assert "bring gone back" in capsys.readouterr().err


def test_a_running_run_is_shown_as_it_is_at_the_moment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running = ViewedRun(tmp_path)
    for number in (1, 2, 3):
        running.train(number, "Which city?")
        assert cli.main(["view", str(tmp_path), "--last", "1"]) == 0
        assert headings(capsys.readouterr().out) == [f"{number:08}/1#0"]
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["config.toml", "ledger.db", "ledger.db-wal", "payload"]
    assert cli.main(["audit", str(tmp_path)]) == 3  # a moment of it could not be judged
    assert "is still going on" in capsys.readouterr().err
    running.train(4, "Which city?")
    assert cli.main(["audit", str(running.close())]) == 0


def with_failures(folder: Path) -> Path:
    """Group 1 is trained; of group 2 one episode failed, twice, and the other is done."""
    run = ViewedRun(folder)
    run.train(1, "Which city?")
    first, second = run.mint("Which river?")
    run.finish(second, "Which river?", "Seine", version=2, reward=1.0)
    run.fail(first, "boom")
    run.fail(run.assigned()[-1], "bang\n\x1b[2J")
    return run.close()


def test_failed_episodes_are_found_without_knowing_their_group(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(with_failures(tmp_path))
    for choice in ([], ["--last", "5"], ["--group", "2"], ["--task", "t1"]):
        assert cli.main(["view", run, "--failed", *choice]) == 0
        shown = capsys.readouterr().out
        assert headings(shown) == ["00000002/0#1"]
        assert "outcome:    env_error" in shown
        assert "error:      bang" in shown
        assert "\x1b" not in shown
        assert "reward:     none" in shown, "never a zero reward"
    for choice, said in (
        (["--group", "9"], "has no group 9"),
        (["--lease", "9"], "has no lease 9: its only lease is 1"),
        (["--task", "t9"], "has no episode of task t9; it has t0, t1"),
    ):
        assert cli.main(["view", run, "--failed", *choice]) == 65
        assert said in capsys.readouterr().err
    task = ["--task", "t0"]
    for choice in (
        *(["--group", "1"], ["--lease", "1"], ["--best", "1", *task]),
        *(task, [*task, "--last", "1"], [*task, "--json"]),
    ):
        assert cli.main(["view", run, "--failed", *choice]) == 0
        out, err = capsys.readouterr()
        told = f"{run}/logs has those of evaluations"
        assert (out, err) == ("", f"agentrl: {run} has no failed episode of training; {told}\n")


def test_where_nothing_failed_for_good_what_was_queued_again_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ViewedRun(tmp_path)
    (first, _) = run.mint("Which river?")
    run.fail(first, "worker w-0\n was lost")
    assert cli.main(["view", str(run.close()), "--failed"]) == 0
    said = "no failed episode of training; 1 open ones were queued again (worker w-0 was lost); "
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ([], "no episode that is done yet"),
        (["--best", "1"], "no episode that is done yet"),
        (["--json"], "no episode yet"),
        (
            ["--failed"],
            "no failed episode of training; {run}/logs has those of evaluations",
        ),
    ],
)
def test_a_run_without_an_episode_has_nothing_to_show_and_that_is_no_error(
    choice: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(ViewedRun(tmp_path).close())
    assert cli.main(["view", run, *choice]) == 0
    assert capsys.readouterr() == ("", f"agentrl: {run} has {said.format(run=run)}\n")


def test_a_group_of_another_task_is_there_and_has_no_episode_to_show(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(with_failures(tmp_path))
    assert cli.main(["view", run, "--group", "1", "--task", "t1"]) == 0
    assert capsys.readouterr() == ("", f"agentrl: {run} has no such episode of task t1\n")


def test_a_group_that_was_judged_in_vain_counts_as_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ViewedRun(tmp_path)
    for episode in run.mint("Which river?"):
        run.finish(episode, "Which river?", "Seine", version=1, reward=1.0)
    (order,) = [message for message in run.inbox if isinstance(message, ScoreGroup)]
    run.say("worker", GroupScore(order.group, [], False, error="the judge is out"))
    assert cli.main(["view", str(run.close()), "--failed", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["outcome"] for line in lines] == ["done", "done"]
    assert {line["fate"] for line in lines} == {"env_error"}
    assert "the judge is out" in lines[0]["reason"]


def test_a_task_is_found_in_all_its_groups(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(trained(tmp_path))
    assert cli.main(["view", run, "--task", "t1"]) == 0
    assert headings(capsys.readouterr().out) == ["00000002/0#0", "00000002/1#0"]
    assert cli.main(["view", run, "--task", "t1", "--best", "1"]) == 0
    assert headings(capsys.readouterr().out) == ["00000002/0#0"]


def test_json_is_one_object_a_line_of_every_episode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = with_failures(tmp_path)
    (run / "config.toml").write_text('hf_checkpoint = "gone"\n')  # no tokenizer is needed
    assert cli.main(["view", str(run), "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["group"], line["index"]) for line in lines] == [
        *(("00000001", 0), ("00000001", 1)),
        *(("00000002", 0), ("00000002", 1)),
    ]
    first, _, failed, done = lines
    assert first.pop("wall_s") >= 0
    assert first == {
        "group": "00000001",
        "index": 0,
        "task": "t0",
        "attempt": 0,
        "lease": 1,
        "state": "retired",
        "fate": "trained",
        "outcome": "done",
        "stop_reason": "terminated",
        "env": None,
        "part": None,
        "reward": 1.0,
        "advantage": pytest.approx(0.7071, abs=1e-4),
        "roles": {},
        "metrics": {"calls": 1.0},
        "versions": {"1": first["sampled"]},
        "turns": 2,
        "tokens": first["tokens"],
        "sampled": first["sampled"],
        "error": None,
        "reason": None,
    }
    assert first["tokens"] > first["sampled"] > 0
    assert (failed["outcome"], failed["error"], failed["reward"], failed["turns"]) == (
        *("env_error", "bang\n\x1b[2J", None, 0),
    )
    assert (done["outcome"], done["reward"], done["advantage"]) == ("done", 1.0, None)
    assert cli.main(["view", str(run), "--json", "--last", "1"]) == 0
    assert json.loads(capsys.readouterr().out) == done
    help_page = add_help(capsys)
    assert all(name in help_page for name in lines[0])


def add_help(capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit):
        cli.main(["view", "--help"])
    return capsys.readouterr().out


def test_json_says_nothing_of_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["view", str(trained(tmp_path)), "--json", "--tokens"]) == 2
    assert "leave out --tokens" in capsys.readouterr().err


def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    run = trained(tmp_path, "word " * 2_000, keep=10**8)
    argv = [sys.executable, "-m", "agentrl.cli", "view", str(run), "--tokens"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as viewer:
        assert viewer.stdout is not None
        assert viewer.stderr is not None
        viewer.stdout.readline()
        viewer.stdout.close()
        assert viewer.stderr.read() == b""
    assert viewer.returncode == 0


def test_viewing_changes_no_byte_and_leaves_no_file(tmp_path: Path) -> None:
    run = trained(tmp_path)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert cli.main(["view", str(run)]) == 0
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
