"""`launch` up to the moment when it would start something: signals, and what is written down."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

LAUNCH = """
import sys
from agentrl.cluster.launch import launch
from agentrl.config.run import RunConfig
folder, run_id, resume = sys.argv[1:]
config = RunConfig(env=f"{folder}/env.py", run_dir=folder, run_id=run_id, resume=resume)
sys.exit(launch(config, 0.0))
"""
ENV = """
import json, sys, threading
from pathlib import Path
from agentrl import Env, Message

class Slow(Env):
    @classmethod
    def train_tasks(cls, args, seed):
        print("begun", flush=True)
        {body}

    async def reset(self, *, seed, task):
        return [Message.user("")]

    async def score(self, text):
        return 0.0
"""
WAIT = "threading.Event().wait()"
SWALLOW = """
        try:
            print("waiting", flush=True)
            threading.Event().wait()
        except BaseException:
            print("swallowed", flush=True)
            threading.Event().wait()
"""


def begin(folder: Path, body: str, run_id: str = "r", resume: str = "never") -> Any:
    (folder / "env.py").write_text(ENV.format(body=body))
    command = [sys.executable, "-c", LAUNCH, str(folder), run_id, resume]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(process: Any, said: str) -> None:
    while said not in (line := process.stdout.readline()):
        assert line, process.stderr.read()


def summary(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return found


def test_a_signal_ends_a_source_that_takes_long(tmp_path: Path) -> None:
    with begin(tmp_path, WAIT) as process:
        wait_for(process, "begun")
        process.send_signal(signal.SIGTERM)
        said, errors = process.communicate()
    assert process.returncode == 143, errors
    assert "Traceback" not in said + errors
    assert summary(tmp_path / "r")["status"] == "interrupted"


def test_a_second_signal_ends_user_code_that_swallowed_the_first(tmp_path: Path) -> None:
    with begin(tmp_path, SWALLOW) as process:
        for said in ("waiting", "swallowed"):
            wait_for(process, said)
            process.send_signal(signal.SIGINT)
        process.communicate()
    assert process.returncode == 130
    assert summary(tmp_path / "r")["status"] == "interrupted"


def test_what_would_fail_again_has_failed_under_the_id_of_the_run(tmp_path: Path) -> None:
    """The folder has been renamed since it began."""
    (tmp_path / "new").mkdir()
    body = "from agentrl.errors import DataError; raise DataError('row 3')"
    begin(tmp_path, body, "old", str(tmp_path / "new")).communicate()
    told = summary(tmp_path / "new")
    assert (told["status"], told["error"], told["run_id"]) == ("failed", "row 3", "old")


def test_the_loss_of_a_process_is_a_crash(tmp_path: Path) -> None:
    begin(tmp_path, "from agentrl.errors import EngineError; raise EngineError").communicate()
    assert summary(tmp_path / "r")["status"] == "crashed"


def test_a_bug_is_a_crash_and_ray_s_logs_are_kept(tmp_path: Path) -> None:
    body = """
        run = Path(__file__).parent / "r"
        private = Path(json.loads((run / "run.json").read_text())["private"])
        (private / "ray" / "session_2026-01-01" / "logs").mkdir(parents=True)
        (private / "ray" / "session_2026-01-01" / "logs" / "raylet.out").write_text("no memory")
        raise RuntimeError
    """
    begin(tmp_path, body).communicate()
    assert summary(tmp_path / "r")["status"] == "crashed"
    assert (tmp_path / "r" / "logs" / "ray" / "raylet.out").read_text() == "no memory"


def test_a_run_whose_process_died_again_and_again_promises_nothing(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "ledger.db").touch()
    told = "the learner ended 3 times in lease 9 (groups 7, 8)"
    for raised, hint in (
        (f"RestartsSpentError('long', told={told!r})", f"; {told}; --resume {{}} goes on if"),
        ("EnvironmentSetupError('no room')", "; --resume {} goes on if what ended it is mended"),
        ("SystemExit('of the user')", "; --resume {} goes on if what ended it is mended"),
        ("ZeroDivisionError('a bug')", "; --resume {} goes on if what ended it is mended"),
        ("AgentRLError('not to be tried again')", "; --resume {} goes on if what ended it"),
        ("EngineError('gone')", "; --resume {} goes on\n"),
    ):
        body = f"from agentrl.errors import *; raise {raised}"
        body = body.replace(
            "import *",
            "import AgentRLError, EngineError, EnvironmentSetupError, RestartsSpentError",
        )
        said, _ = begin(tmp_path, body, "old", str(tmp_path / "new")).communicate()
        assert hint.format(tmp_path / "new") in said
