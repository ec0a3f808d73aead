"""`agentrl` and the two programs: exit codes and what they print before anything starts."""

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

import agentrl.envs.search_r1
from agentrl.buffer.ledger import Ledger
from agentrl.cli import main as cli
from agentrl.cli import train
from agentrl.cli.doctor import examine
from tests.unit.buffer_runs import trained_run

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
MODEL = Path(agentrl.envs.search_r1.__file__).parent / "model"
ROWS = ["--prompt-data", "rows.jsonl", "--hf-checkpoint", str(MODEL), "--n-samples-per-prompt", "2"]
ROWS += ["--rollout-max-response-len", "64"]


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
        ("--sglang-port 30000", "--sglang-port: agentrl places its engines itself"),
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
    argv = ["--dynamic-sampling-filter-path", "agentrl.actors.group_scoring:nothing"]
    assert train.main([*argv, *dry], "train_async") == 2
    assert (
        "--dynamic-sampling-filter-path agentrl.actors.group_scoring:nothing"
        in capsys.readouterr().err
    )


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
    assert (
        "is still going on, and only a run that has ended can be audited" in capsys.readouterr().err
    )
    assert cli.main(["audit", str(tmp_path)]) == 0
    assert capsys.readouterr().out.endswith("clean\n")


def test_the_doctor_looks_where_runs_would_go_and_leaves_nothing(tmp_path: Path) -> None:
    findings = {finding.name: finding for finding in examine(tmp_path / "runs" / "deep")}
    assert findings["python"].good
    assert findings["fsync"].good
    assert str(tmp_path) in findings["fsync"].detail
    assert list(tmp_path.iterdir()) == []


def test_the_doctor_names_a_limit_of_open_files_that_is_too_low(tmp_path: Path) -> None:
    code = (
        "import resource, sys; from pathlib import Path; from agentrl.cli.doctor import examine\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))\n"
        "print(next(f.detail for f in examine(Path(sys.argv[1])) if f.name == 'open files'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("ulimit -Hn 128; the default job needs ")


@pytest.mark.parametrize(
    ("command", "name", "said"),
    [
        ("audit", "ledger.db", "has no ledger.db"),
        ("audit", "ledger.db-wal", "ledger.db-wal is a FIFO"),
        ("view", "ledger.db", "ledger.db is a FIFO"),
        ("view", "ledger.db-wal", "ledger.db-wal is a FIFO"),
        ("view", "config.toml", "config.toml is a FIFO"),
    ],
)
def test_nothing_waits_for_a_fifo_in_the_place_of_a_runs_file(
    command: str, name: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Ledger(tmp_path / "ledger.db"):
        pass
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    assert cli.main([command, str(tmp_path)]) == 65
    assert said in capsys.readouterr().err


def test_flags_places_code_and_model_are_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"input": "1 + 1?", "label": "2"}\n')
    (tmp_path / "taken").touch()
    argv = f"--dry-run --prompt-data {rows} --hf-checkpoint agentrl/envs/search_r1/model --colocate"
    argv += " --rollout-max-response-len 64 --custom-rm-path no_such:fn --vocab-size 7"
    argv += f" --dynamic-sampling-filter-path none:fn --save {tmp_path / 'taken'}"
    argv += " --n-samples-per-prompt 1"
    assert train.main(argv.split(), "train_async") == 2
    said = capsys.readouterr().err
    for words in ("--colocate", "--save", "--n-samples-per-prompt 1"):
        assert words in said
    for words in ("no_such", "none", "--vocab-size is 7"):
        assert words in said


def test_a_model_that_is_none_is_told_once_and_nothing_waits_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text('{"input": "1 + 1?", "label": "2"}\n')
    os.mkfifo(tmp_path / "model")
    for place in ("model", "Qwen/Qwen2.5-0.5B-Instruct"):
        assert train.main([*ROWS, "--hf-checkpoint", place, "--dry-run"], "train") == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"train: --hf-checkpoint {place} is no Hugging Face model directory")


def test_a_reward_that_nobody_named_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text('{"input": "2+2", "label": "4"}\n')
    argv = [*ROWS, "--dry-run"]
    note = "no --rm-type and no --custom-rm-path: the reward is 1 where the model's whole text is"
    assert train.main(argv, "train") == 0
    assert note in capsys.readouterr().out
    assert train.main([*argv, "--custom-rm-path", "exact"], "train") == 0
    said = capsys.readouterr().out
    assert note not in said
    assert "shows no tools" not in said


def test_ray_is_imported_as_the_runs_own_needs_it_before_user_code_imports_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "rows.jsonl").write_text('{"input": "1 + 1?", "label": "2"}\n')
    (tmp_path / "reward.py").write_text(
        "import sys\n"
        "print('ray was imported' if 'ray' in sys.modules else 'ray was not')\n"
        "def reward(text, label, task): return 1.0\n"
    )
    argv = [*ROWS, "--custom-rm-path", "reward.py", "--num-layers", "9"]  # so that nothing starts
    command = [sys.executable, str(ROOT / "train.py"), *argv]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=500)
    assert (done.returncode, "--num-layers is 9" in done.stderr) == (2, True)
    assert "ray was imported\n" in done.stdout
