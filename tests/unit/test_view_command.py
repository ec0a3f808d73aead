"""`agentrl view` as a command: its output and exit codes, and that it only reads."""

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from agentrl.buffer.ledger import Ledger
from agentrl.cli import main as cli
from tests.unit.viewed_run import headings, trained


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


def test_no_run_a_running_run_and_a_missing_tokenizer_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["view", str(tmp_path / "nowhere")]) == 65
    assert "it is no run directory" in capsys.readouterr().err
    run = trained(tmp_path)
    with Ledger(run / "ledger.db"):
        assert cli.main(["view", str(run)]) == 3
    assert "is in use" in capsys.readouterr().err
    (run / "config.toml").write_text('hf_checkpoint = "gone"\n')
    assert cli.main(["view", str(run)]) == 3
    assert "bring gone back" in capsys.readouterr().err


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
