"""Keys, passwords and credentials of addresses are told to no service that a run is tracked by, and
written nowhere."""

import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from agentrl.cluster.launch import launch
from agentrl.cluster.tracking import shown_config, trackers
from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.config.resolve import parse
from agentrl.config.run import RunConfig
from agentrl.config.secrets import forget_in_argv, secrets_of, without_secrets
from agentrl.config.toml import dump_config
from agentrl.config.tracking import about_tracking, notes_on_tracking
from agentrl.errors import EnvironmentSetupError
from tests.tracked import calls, resolved, standing_in, write
from tests.unit.tracked_services import KEY, SERVICES, Played, played

__all__ = ["played"]

KEYED = [name for name, service in SERVICES.items() if service.key]


def test_an_error_of_the_start_hides_keys_and_passwords(
    played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_TOKEN", "of-the-environment")
    said = f"{KEY} of-the-environment http://me:pass@h/a"
    played.package.RECORDED.fail(played.service.begin, said)
    key = played.service.key
    words = f"--use-{played.name} {key} {KEY}" if key else f"--use-{played.name}"
    with pytest.raises(EnvironmentSetupError) as refused:
        write(resolved(words), tmp_path)
    assert f"{'[hidden]' if key else KEY} [hidden] http://h/a;" in str(refused.value)


def without_rows(words: str, run_dir: Path) -> RunConfig:
    """A run that fails before Ray is started: its rows are what the driver meets first."""
    rows = run_dir / "rows.jsonl"
    rows.write_text('{"input": "q", "label": "a"}\n')
    flags = f"{words} --prompt-data {rows} --custom-rm-path exact --rollout-max-context-len 64"
    flags += f" --hf-checkpoint {PRESETS[DEFAULT].values['hf_checkpoint']}"
    config = resolved(f"{flags} --run-dir {run_dir} --run-id r")
    rows.unlink()
    return config


@pytest.mark.parametrize("name", KEYED)
def test_a_run_whose_tracker_does_not_begin_does_not_start(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = without_rows(f"--use-{name} {SERVICES[name].key} {KEY}", tmp_path)
    with standing_in(name, monkeypatch) as package:
        package.RECORDED.fail("init", f"the key {KEY} is not known")
        with pytest.raises(EnvironmentSetupError, match=r"the key \[hidden\] is not known; give"):
            launch(config, time.monotonic())


@pytest.mark.parametrize("name", KEYED)
def test_a_key_stands_in_nothing_that_is_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = f"{SERVICES[name].key} {KEY}"
    config = without_rows(f"--use-{name} {key}", tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py", key.replace(" ", "="), *key.split()])
    forget_in_argv(config)

    with standing_in(name, monkeypatch) as package:
        assert launch(config, time.monotonic()) != 0
        assert calls(package, "init")[0]["key"] == KEY
        assert SERVICES[name].failed.items() <= calls(package, "finish")[0].items()

    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"config.toml", "driver.log", f"{name}.json"} <= {path.name for path in written}
    assert [path for path in written if KEY.encode() in path.read_bytes()] == []


@pytest.mark.parametrize("name", KEYED)
def test_a_configuration_is_told_without_its_secrets(name: str) -> None:
    key = SERVICES[name].key
    config = resolved(f"--use-{name} {key} {KEY}")
    assert secrets_of(config) == [KEY]
    assert KEY not in dump_config(config)
    assert KEY.encode() not in msgspec.json.encode(without_secrets(config))
    assert KEY not in repr(trackers(config))
    twice = parse(["--device", "cpu", *f"--use-{name} {key} a{KEY} {key} b".split()], "train_async")
    assert any(f"{key} is given 2 times" in note for note in twice.notes)
    assert not any(KEY in note for note in twice.notes)


def given(flag: str, value: str) -> RunConfig:
    name = flag.strip("-").replace("-", "_")
    return msgspec.structs.replace(RunConfig(), **{name: value})


#: Reads its own key from the command line, and says what is refused before and after it forgets it.
_FORGETS = """
import subprocess, sys, time
from agentrl.config.run import RunConfig
from agentrl.config.secrets import forget_in_argv
from agentrl.config.tracking import about_tracking, notes_on_tracking

key = sys.argv[-1]
config = RunConfig(use_wandb=True, wandb_key=key, swanlab_key=key, ray_address="10.0.0.1:6379")
before = list(about_tracking(config))
forget_in_argv(config)
after = list(about_tracking(config))
assert key not in sys.argv and key not in sys.orig_argv
print(before, after, sep="\\n", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the system lets no process do it elsewhere")
def test_a_key_is_wiped_from_the_command_line_that_others_see() -> None:
    """Ray reads it there too, and keeps it as the entry point of a job."""
    command = [sys.executable, "-c", _FORGETS, "--wandb-key", KEY]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as started:
        assert started.stdout is not None
        before, after = started.stdout.readline(), started.stdout.readline()
        shown = Path(f"/proc/{started.pid}/cmdline").read_bytes().split(b"\0")[:-1]
        started.communicate()
    assert started.returncode == 0
    assert "WANDB_API_KEY" in before
    assert "SWANLAB_API_KEY" in before
    assert KEY not in before
    assert after == "[]\n"
    assert shown[-2:] == [b"--wandb-key", b"*" * len(KEY)]


def test_a_key_that_is_used_is_noted() -> None:
    noted = list(notes_on_tracking(RunConfig(use_wandb=True, wandb_key=KEY)))
    assert [note.partition(":")[0] for note in noted] == ["--wandb-key"]
    assert KEY not in noted[0]
    assert list(notes_on_tracking(RunConfig(wandb_key=KEY))) == []


def test_addresses_that_are_none_are_refused() -> None:
    for flag in ("--wandb-host", "--swanlab-host"):
        (refused,) = about_tracking(given(flag, "corp.example"))
        assert "an address is wanted, as in https://corp.example" in refused


ADDRESSES = {
    "--wandb-host": "WANDB_BASE_URL",
    "--swanlab-host": "SWANLAB_API_HOST",
    "--mlflow-tracking-uri": "MLFLOW_TRACKING_URI",
}


@pytest.mark.parametrize("flag", ADDRESSES)
@pytest.mark.parametrize(
    "address",
    [
        "https://me:hunter2@corp.example/a",
        "https://hunter2@corp.example",
        "https://me:hunter2/x@corp.example",
        "https://me?hunter2@corp.example",
        "https://me#hunter2@corp.example",
        "http://[bad:hunter2@corp.example",
        "http://[hunter2",
        "me:hunter2@corp.example",
        "//me:hunter2@corp.example",
        "postgresql://h/db?user=u&password=hunter2",
        "https://h?sslpassword=hunter2",
        "https://h/?token=hunter2",
        "https://h/?X-Api-Key=hunter2",
        "https://h/?api%5Fkey=hunter2",
        "https://h/a#access_token=hunter2",
        "https://h/a;Secret=hunter2",
        "mssql+pyodbc:///?odbc_connect=PWD%3Dhunter2",
    ],
)
def test_an_address_in_which_a_secret_may_stand_is_refused(flag: str, address: str) -> None:
    (refused,) = about_tracking(given(flag, address))
    assert refused.startswith(f"{flag}: ")
    assert "config.toml would show it; leave it out" in refused
    assert refused.endswith(f"or leave the flag out and set {ADDRESSES[flag]}")
    assert "hunter2" not in refused


@pytest.mark.parametrize(
    "address",
    [
        "databricks",
        "databricks://scope:prefix",
        "./mlruns",
        "./a@b/mlruns",
        "file:///data/a@b",
        "sqlite:////data/a@b.db",
        "postgresql://h:5432/db?sslmode=require",
        "http://[::1]:5000/keys",
        "http://corp.example/?sort=token",
    ],
)
def test_an_address_in_which_none_stands_is_taken(address: str) -> None:
    assert list(about_tracking(RunConfig(mlflow_tracking_uri=address))) == []


def test_addresses_are_shown_without_their_credentials() -> None:
    url = "http://me:secret@h:1/a?token=secret"
    args = {"rm_url": "me:secret@h/a", "deep": [f"{url},{url} x"], "text": "a@b?c"}
    shown = shown_config(RunConfig(rm_url=url, env_args=args))
    assert "secret" not in repr(shown)
    assert shown["rm_url"] == "http://h:1/a"
    assert shown["env_args"] == {
        "rm_url": "h/a",
        "deep": ["http://h:1/a,http://h:1/a x"],
        "text": "a@b?c",
    }
