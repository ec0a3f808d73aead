"""`agentrl env check` on the command line: what it says of wrong tasks, and of where it stands."""

import io
import re
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from agentrl.cli.check import CheckProgress
from agentrl.cli.main import main
from agentrl.envs.check.harness import Standing

pytestmark = pytest.mark.slow

ENV = """
from agentrl import Env, Message


class Sums(Env):
    reward_reads_text_only = True

    @classmethod
    def {method}

    async def reset(self, *, seed, task):
        return [Message.user("What is 1 plus 1?")]

    async def score(self, text):
        return float(text.strip() == "2")
"""
THIRD = Standing(3, 14, "whatever the policy says is answered")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("train_tasks(cls):\n        return []", "write `def train_tasks(cls, args, *, seed):`"),
        (
            "train_tasks(cls, args, *, seed):\n        return 3",
            "Sums.train_tasks returned 3",
        ),
        (
            "train_tasks(cls, args, *, seed):\n        return args['split']",
            "Sums.train_tasks raised KeyError: 'split' (sums.py:10)",
        ),
        ("eval_tasks(cls, args):\n        return 1 / 0", "Sums.eval_tasks raised ZeroDivision"),
        ("eval_tasks(cls, args):\n        return [3]", "Sums.eval_tasks returned [3]"),
        (
            "eval_tasks(cls, args):\n        return {str(n): [] for n in range(65)}",
            "there are 65 evaluation sets, and at most 64 can be played at once",
        ),
        ("service_specs(cls, args):\n        return ['db']", "Sums.service_specs returned ['db']"),
        ("service_specs(cls):\n        return {}", "write `def service_specs(cls, args):`"),
    ],
)
def test_a_class_method_that_is_wrong_is_told_without_a_traceback(
    method: str, said: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = ENV.format(method=method)
    if "train_tasks" not in method:
        source += (
            "\n    @classmethod\n    def train_tasks(cls, args, *, seed):\n"
            "        return Tasks()\n\n\nclass Tasks:\n"
            "    async def tasks(self, cursor=0):\n"
            "        from agentrl.types import Task\n        yield Task('t', {})\n"
        )
    (here / "sums.py").write_text(source)
    assert main(["env", "check", "sums.py"]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Waited(io.StringIO):
    """A file that tells when `wanted` lines have been written to it."""

    def __init__(self, wanted: int) -> None:
        super().__init__()
        self.there = threading.Event()
        self._wanted = wanted

    def write(self, text: str) -> int:
        written = super().write(text)
        if self.getvalue().count("\n") >= self._wanted:
            self.there.set()
        return written


def test_where_a_check_stands_is_said_again_and_again_where_there_is_no_terminal() -> None:
    out = Waited(3)
    times = iter(range(0, 1200, 12))
    with CheckProgress(out, every_s=0.01, now=lambda: float(next(times))) as progress:
        progress.tries(THIRD)
        assert out.there.wait(300)
    lines = out.getvalue().splitlines()
    assert lines[:3] == [
        f".. promise 3 of 14, {seconds} s: whatever the policy says is answered"
        for seconds in (12, 24, 36)
    ]


def test_a_quick_check_says_nothing_of_where_it_stands_where_there_is_no_terminal() -> None:
    out = io.StringIO()
    with CheckProgress(out, every_s=1000.0) as progress:
        progress.tries(THIRD)
        progress.clear()
    assert out.getvalue() == ""


def test_on_a_terminal_what_is_found_takes_the_place_of_the_line() -> None:
    out = Terminal()
    with CheckProgress(out, every_s=1000.0) as progress:
        progress.tries(THIRD)
        assert re.search(r"\r\x1b\[K\.\. promise 3 of 14, \d+ s: whatever", out.getvalue())
        progress.clear()
        assert out.getvalue().endswith("\r\x1b[K")
        assert "\n" not in out.getvalue()


def test_the_time_of_a_check_is_a_flag_and_what_was_left_out_is_said(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["env", "new", "sums"])
    flags = ["env", "check", "sums.py", "--prompt-data", "sums.jsonl"]
    capsys.readouterr()
    assert main([*flags, "--limit-s", "0.000001"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "    not tried: its time was over (--limit-s gives the check more than 1e-06 s)" in lines
    assert lines[-1] == "Sums: what could be tried is kept"
    for wrong in ("0", "-1", "soon", "inf", "nan"):
        with pytest.raises(SystemExit) as ended:
            main([*flags, "--limit-s", wrong])
        assert ended.value.code == 2
        assert "is no number of seconds above 0" in capsys.readouterr().err


# ---- code that ends its process ------------------------------------------------------------------

PROGRAM = "import sys; from agentrl.cli.main import main; sys.exit(main())"
TOOL = '''
    @tool
    async def add(self, a: int, b: int) -> int:
        """Add two numbers."""
        {does}
'''
SERVED = """
    @classmethod
    def service_specs(cls, args):
        import sys
        from agentrl import ServiceSpec
        sleeper = ["python", "-m", "http.server", "--bind", "{host}", "{port}"]
        return {"files": ServiceSpec("files", [sys.executable, *sleeper[1:]], "/")}
"""


def shell(*argv: str) -> "subprocess.CompletedProcess[str]":
    """`agentrl` as from a shell, in the current directory."""
    command = [sys.executable, "-c", PROGRAM, *argv]
    return subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)


@pytest.mark.parametrize(
    ("does", "how"),
    [
        ("import os; os._exit(0)", "with exit code 0"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "by signal SIGKILL"),
    ],
)
def test_a_tool_that_ends_its_process_breaks_the_promise_that_is_tried(
    does: str, how: str, here: Path
) -> None:
    (here / "rows.jsonl").write_text('{"q": "x"}\n')
    source = ENV.format(method="eval_tasks(cls, args):\n        return {}")
    source = source.replace("import Env", "import tool, Env") + TOOL.format(does=does)
    (here / "sums.py").write_text(source)
    done = shell("env", "check", "sums.py", "--prompt-data", "rows.jsonl")
    assert done.returncode == 1, done.stderr
    *_, kept, broken, why, last = done.stdout.splitlines()
    assert kept == "ok  the same seed and task give the same prompt"
    assert broken == f"BAD {THIRD.promise}"
    assert why.startswith(f"    code of the Env ended the process {how}, where only ")
    assert last == "this promise is broken, and nothing more was tried"


def test_code_that_ends_its_process_as_it_is_imported_is_told_too(here: Path) -> None:
    (here / "sums.py").write_text("import os\nos._exit(0)\n")
    done = shell("env", "check", "sums.py")
    assert done.returncode == 1
    assert "BAD it can be imported, made and reset\n" in done.stdout


def test_a_service_of_an_env_that_ends_its_process_is_ended_too(here: Path) -> None:
    (here / "rows.jsonl").write_text('{"q": "x"}\n')
    source = ENV.format(method="eval_tasks(cls, args):\n        return {}")
    source += SERVED + "\n    async def close(self):\n        __import__('os')._exit(0)\n"
    (here / "sums.py").write_text(source)
    done = shell("env", "check", "sums.py", "--prompt-data", "rows.jsonl")
    assert done.returncode == 1
    servers = [
        process
        for process in psutil.process_iter(["cmdline", "cwd"])
        if "http.server" in (process.info["cmdline"] or []) and process.info["cwd"] == str(here)
    ]
    assert servers == []


def test_from_a_shell_a_check_ends_as_the_program_does_in_one_process(here: Path) -> None:
    assert shell("env", "new", "sums").returncode == 0
    flags = ["env", "check", "sums.py", "--prompt-data", "sums.jsonl"]
    done = shell(*flags)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("Sums: every promise is kept\n")
    assert shell(*flags, "--zzz").returncode == 2
    assert shell("env", "check", "absent.py").returncode == 2
