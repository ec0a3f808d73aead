"""What a run needs of its host, told before anything starts."""

import os
import resource
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentrl.cli.train import main
from agentrl.config.descriptors import open_files
from agentrl.config.run import RunConfig

pytestmark = pytest.mark.slow

DRY = ["--preset", "search-r1-local", "--dry-run"]
ROOT = Path(__file__).parents[2]


def refused(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 2) -> str:
    assert main([*DRY, *argv], "train_async") == code
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    return said.err


# ---- what is no file ----------------------------------------------------------------------------


def lay(kind: str, place: Path) -> Path:
    match kind:
        case "a directory":
            place.mkdir()
        case "a FIFO":
            os.mkfifo(place)
        case "a socket":
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(str(place))
        case "a device":
            return Path("/dev/null")
        case "a link to nothing":
            place.symlink_to("nowhere")
    return place


KINDS = ["a directory", "a FIFO", "a socket", "a device", "a link to nothing"]


@pytest.mark.parametrize("kind", KINDS[1:])
def test_rows_in_what_is_no_file_are_told(
    kind: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path may not be long
    place = lay(kind, Path("x"))
    assert f" is {kind}, not a file of rows" in refused(capsys, "--prompt-data", str(place))
    assert f" is {kind}, not a file of rows" in refused(
        capsys, "--eval-prompt-data", "v", str(place)
    )


def test_rows_in_a_folder_of_something_else_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = f"{tmp_path}: it is a directory with neither Parquet nor JSONL files nor the state.json"
    assert said in refused(capsys, "--prompt-data", str(tmp_path))
    assert said in refused(capsys, "--eval-prompt-data", "v", str(tmp_path))


@pytest.mark.parametrize("kind", ["a directory", "a FIFO"])
def test_code_and_settings_in_what_is_no_file_are_told(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"is {kind}, not code" in refused(capsys, "--env", str(lay(kind, tmp_path / "e.py")))
    settings = lay(kind, tmp_path / "c.toml")
    assert f"is {kind}, not a file of settings" in refused(capsys, "--config", str(settings))


# ---- the name of a run --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["../../etc/x", ".", "..", "", "a b", "a\nb", "\x1b[2J", "x" * 81, "x\n", "é", "a/b"]
)
def test_a_name_that_is_no_plain_name_is_refused(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, "--run-id", name)
    assert "--run-id cannot be " in said
    assert "1 to 80 letters, digits, dots, dashes and underscores" in said
    assert "\x1b" not in said
    assert len(said) < 300


@pytest.mark.parametrize("name", ["a", "x" * 80, "A-1_b.c", "...", ".hidden"])
def test_a_plain_name_is_taken(name: str, tmp_path: Path) -> None:
    assert main([*DRY, "--run-dir", str(tmp_path), "--run-id", name], "train_async") == 0


def test_the_name_of_a_run_that_is_there_is_told_by_the_dry_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "ledger.db").touch()
    said = refused(capsys, "--run-dir", str(tmp_path), "--run-id", "one")
    assert f"{tmp_path / 'one'} exists; choose another --run-id, or continue it" in said


# ---- places to write ----------------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["--run-dir", "--save", "--save-hf"])
def test_a_file_in_the_place_of_a_folder_is_told(
    flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "names.jsonl"
    file.touch()
    for place in (file, file / "below", file / "{rollout_id}"):
        said = refused(capsys, flag, str(place))
        assert f"{file} is a file, and a folder is to be there" in said
    assert "/dev/null is a device" in refused(capsys, flag, "/dev/null")


@pytest.mark.parametrize("flag", ["--run-dir", "--save", "--save-hf"])
def test_a_place_that_cannot_be_written_is_tried_and_told(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, flag, "/proc/sys/nothing/here", code=3)
    assert f"{flag} /proc/sys/nothing/here: /proc/sys cannot be written: " in said


def test_a_place_with_a_field_that_is_none_is_refused_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, "--save-hf", str(tmp_path / "m_{foo}"))
    assert said.count("{foo} is unknown") == 1
    assert main([*DRY, "--save-hf", str(tmp_path / "m_{rollout_id:05d}")], "train_async") == 0


def test_what_was_tried_leaves_nothing_behind(tmp_path: Path) -> None:
    places = ["--run-dir", "--save", "--save-hf"]
    argv = [word for flag in places for word in (flag, str(tmp_path / flag / "new"))]
    assert main([*DRY, *argv], "train_async") == 0
    assert list(tmp_path.iterdir()) == []


def test_all_that_is_wrong_with_the_host_is_told_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "names.jsonl"
    rows.touch()
    said = refused(capsys, "--save", str(rows), "--run-dir", str(rows))
    assert f"--run-dir {rows}: {rows} is a file" in said
    said = refused(capsys, "--load", str(rows), "--eval-only")
    assert f"--load: {rows} is a file; name a run, its checkpoints, or one of them" in said


def test_a_folder_without_checkpoints_is_nothing_to_evaluate_and_one_without_files_passed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "there is no checkpoint" in refused(capsys, "--eval-only", "--load", str(tmp_path))
    none = str(tmp_path / "none")
    assert "there is no folder" in refused(capsys, "--eval-only", "--load", none)
    (tmp_path / "iteration_0000003").mkdir()
    for place in (tmp_path, tmp_path / "iteration_0000003"):
        assert main([*DRY, "--load", str(place)], "train_async") == 0
        assert "has no manifest.json: it is no checkpoint" in capsys.readouterr().out


def test_the_final_model_replaces_nothing_but_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "home"
    home.mkdir()
    assert main([*DRY, "--save-hf", str(home)], "train_async") == 0
    (home / "letter.txt").touch()
    said = refused(capsys, "--save-hf", str(home))
    assert "replaces that whole folder, which holds files and no model" in said
    (home / "config.json").touch()
    assert main([*DRY, "--save-hf", str(home)], "train_async") == 0
    assert "the run directory is in it" in refused(capsys, "--save-hf", "/")
    for flag, place in (("--run-dir", "out"), ("--save", "out/kept")):
        assert "in it" in refused(capsys, flag, place, "--save-hf", "out")


# ---- open files ---------------------------------------------------------------------------------


def limited(soft: int, hard: int, *argv: str) -> tuple[int, str, int]:
    """Exit code, words, and the soft limit that is left of a program that starts under these."""
    code = (
        "import resource, sys\n"
        "from agentrl.config.readiness import check_readiness\n"
        "from agentrl.config.resolve import parse\n"
        "from agentrl.errors import AgentRLError\n"
        "resolved = parse(sys.argv[1:], 'train_async')\n"
        "try:\n"
        "    print(*check_readiness(resolved.config, dry_run=resolved.dry_run))\n"
        "    code = 0\n"
        "except AgentRLError as error:\n"
        "    print(error)\n"
        "    code = error.exit_code\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--preset", "search-r1-local", *argv],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard)),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.stderr == ""
    *said, left = done.stdout.splitlines()
    return done.returncode, "\n".join(said), int(left)


def test_a_hard_limit_that_turns_alone_would_reach_is_refused_with_the_numbers() -> None:
    code, said, _ = limited(64, 64)
    assert code == 3
    assert "ulimit -n: a process may open 64 files here (hard limit)" in said
    assert "with 64 turns in flight it needs 192, and 2176 if all 1024 episodes are in a" in said
    assert "tool at once: raise it to 2176 (ulimit -Hn" in said


def test_a_small_soft_limit_is_raised_as_far_as_the_hard_one_allows() -> None:
    code, said, left = limited(64, 3000)
    assert (code, said, left) == (0, "", 3000)
    code, _, left = limited(64, 3000, "--dry-run")
    assert (code, left) == (0, 64)


def test_a_limit_that_leaves_little_for_tools_is_noted() -> None:
    code, said, left = limited(64, 256)
    assert (code, left) == (0, 256)
    assert "2176 would be needed if all 1024 episodes were in a tool at once" in said


def test_the_limits_of_a_cluster_that_runs_already_are_its_own() -> None:
    assert limited(64, 64, "--ray-address", "auto")[0] == 0


def test_open_files_follow_from_turns_and_episodes() -> None:
    config = RunConfig(
        rollout_batch_size=100,
        n_samples_per_prompt=10,
        async_buffer_size=1,
        rollout_num_gpus=4,
        sglang_server_concurrency=300,
        num_agent_workers=2,
        max_concurrent_episodes=800,
    )
    files = open_files(config)
    assert (files.episodes, files.turns) == (1600, 1200)
    assert files.least == 64 + 2 * 1200
    assert files.most == max(files.least, 64 + 800 + 2 * 800)


def test_open_files_are_those_of_an_evaluation_where_it_may_hold_more_episodes() -> None:
    few: dict[str, Any] = {
        "prompt_data": "rows.jsonl",
        "rollout_batch_size": 2,
        "n_samples_per_prompt": 2,
        "rollout_num_gpus": 4,
        "sglang_server_concurrency": 300,
        "max_concurrent_episodes": 800,
    }
    trained = open_files(RunConfig(**few))
    assert (trained.episodes, trained.turns) == (12, 12)
    for evaluated in ({"eval_prompt_data": ["a", "a.jsonl"]}, {"prompt_data": None}):
        files = open_files(RunConfig(**few | evaluated))
        assert (files.episodes, files.turns) == (800, 800)


# ---- where the ledger lies ----------------------------------------------------------------------


def test_a_run_directory_on_a_network_file_system_is_refused_before_anything_starts(
    tmp_path: Path,
) -> None:
    """The kernel says so of a folder of ours, to this one process."""
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("no process can have mounts of its own here")
    told = tmp_path / "mounts"
    told.write_text(f"/dev/sda / ext4 rw 0 0\nserver:/x {tmp_path} nfs4 rw 0 0\n")
    shell = 'mount --bind "$0" /proc/$$/mounts && exec "$@"'
    program = [sys.executable, f"{ROOT}/train_async.py", *DRY, "--run-dir", f"{tmp_path}/runs"]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", shell, str(told), *program],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 3, done.stderr
    assert f"{tmp_path}/runs lies on {tmp_path}, a network file system (nfs4)" in done.stderr
    assert not (tmp_path / "runs").exists()
