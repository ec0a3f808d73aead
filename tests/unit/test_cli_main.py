"""`agentrl` and the two programs: exit codes and what they print before anything starts."""

import sqlite3
from pathlib import Path

import pytest

from agentrl.buffer.ledger import Ledger
from agentrl.cli import main as cli
from agentrl.cli import train
from agentrl.cli.doctor import examine
from tests.unit.buffer_runs import trained_run


def test_help_is_printed_and_nothing_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert train.main(["--help"], "train_async") == 0
    assert capsys.readouterr().out.startswith("usage: python train_async.py")


def test_a_wrong_flag_is_exit_code_2_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert train.main(["--rollout-batchsize", "3"], "train") == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("train: unknown flag --rollout-batchsize; did you mean")


def test_a_dry_run_of_the_default_job_says_first_what_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert train.main(["--dry-run"], "train_async") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("preset search-r1-local: ")
    assert lines[-1] == "nothing was started (--dry-run)"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("--num-layers 4", "--num-layers is 4 but the checkpoint's config.json says 3"),
        ("--tensor-model-parallel-size 2", "1 learner ranks cannot hold whole replicas of 2"),
        ("--sglang-port 30000", "--sglang-port is refused"),
        ("--router-request-timeout-secs 3", "use --turn-timeout-s"),
        ("--env search-r9", "there is no environment 'search-r9'"),
    ],
)
def test_what_only_a_room_can_judge_is_refused_before_anything_starts(
    argv: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ["--preset", "search-r1-local"]
    assert train.main([*model, *argv.split()], "train_async") == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_a_bad_filter_is_refused_although_all_else_is_the_default(
    dry: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--dynamic-sampling-filter-path", "agentrl.actors.judge:nothing"]
    assert train.main([*argv, *dry], "train_async") == 2
    assert "--dynamic-sampling-filter-path agentrl.actors.judge:nothing" in capsys.readouterr().err


def test_a_mistake_in_an_env_ends_the_program_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text('{"q": "x"}\n')
    source = "from agentrl import Env\nclass Calc(Env):\n    def reset(self, *, seed, task): ...\n"
    (tmp_path / "calc.py").write_text(source + "    async def score(self, text): return 1.0\n")
    model = ["--preset", "search-r1-local"]
    argv = [*model, "--env", "calc.py", "--prompt-data", "rows.jsonl"]
    assert train.main(argv, "train_async") == 2
    said = capsys.readouterr().err
    assert said.startswith("train_async: Calc.reset (calc.py:3) is a plain def; write `async def")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["calc.py", "rows.jsonl"]


def test_a_malformed_row_is_exit_code_65_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text('{"question": "x", "answer": "y"}\noops\n')
    assert train.main(["--preset", "search-r1-local", "--prompt-data", "rows.jsonl"], "train") == 65
    assert "rows.jsonl line 2 is not a JSON object" in capsys.readouterr().err
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--env-args", '{"topk": 99}'], "topk is 99; it must lie in 1..20"),
        (["--env-args", '{"top": 3}'], "unexpected keyword argument 'top'; it takes (*, topk"),
    ],
)
def test_arguments_of_the_default_jobs_env_are_checked(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train.main(argv, "train_async") == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "codes"),
    [
        ("audit", ["0", "1", "2", "3", "65"]),
        ("view", ["0", "2", "3", "65"]),
        ("doctor", ["0", "2", "3"]),
    ],
)
def test_the_help_of_a_sub_command_says_what_its_exit_codes_mean(
    command: str, codes: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([command, "--help"])
    assert ended.value.code == 0
    _, table = capsys.readouterr().out.split("exit codes:\n")
    assert [line.split()[0] for line in table.strip().splitlines()] == codes


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["audit"],
        ["audit", "a", "b"],
        ["doctor", "--run", "x", "y"],
        ["adit"],
        ["view", "a", "--best", "0"],
        ["view", "a", "--best", "1", "--last", "1"],
    ],
)
def test_a_wrong_command_line_is_the_exit_code_that_help_says(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(argv)
    assert ended.value.code == 2


def test_an_audit_of_no_run_fails_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["audit", str(tmp_path)]) == 65
    assert "it is no run directory" in capsys.readouterr().err


def test_an_audit_of_a_damaged_ledger_says_which_row_and_is_the_exit_code_that_help_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained_run(tmp_path)
    db = sqlite3.connect(tmp_path / "ledger.db")
    db.execute("UPDATE episodes SET row = 'x' WHERE mint = 2")
    db.commit()
    db.close()
    assert cli.main(["audit", str(tmp_path)]) == 65
    told = capsys.readouterr()
    assert "clean" not in told.out
    assert "episodes, row with mint 2, idx 0: " in told.err
    assert "lost: how episode 00000002/0 stands or ended" in told.err


def test_an_audit_of_a_run_that_goes_on_is_the_exit_code_that_help_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Ledger(tmp_path / "ledger.db"):
        assert cli.main(["audit", str(tmp_path)]) == 3
    assert "is in use" in capsys.readouterr().err
    assert cli.main(["audit", str(tmp_path)]) == 0
    assert capsys.readouterr().out.endswith("clean\n")


def test_the_doctor_looks_where_runs_would_go_and_leaves_nothing(tmp_path: Path) -> None:
    findings = {finding.name: finding for finding in examine(tmp_path / "runs" / "deep")}
    assert findings["python"].good
    assert findings["fsync"].good
    assert str(tmp_path) in findings["fsync"].detail
    assert list(tmp_path.iterdir()) == []
