"""How each snippet of a page is checked, in a folder that looks like a clone with one run in
`runs/ID`. What would start a run gets `--dry-run` and `make` gets `-n`; all else is done. A snippet
without a way in `CHECKS` is a failure."""

import ast
import io
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

import pytest
from packaging.requirements import Requirement

from agentrl.cli.main import main as agentrl_program
from agentrl.envs import registry
from tests.security.sandboxes import bubblewrap
from tests.unit.downloads import download
from tests.unit.left_run import MODEL
from tests.unit.page_snippets import ROOT, Snippet, snippets, words_of

CLUSTER = ["--ray-address", "127.0.0.1:6379"]
#: Pages whose commands run what a model writes, and those of a package that the project has not, by
#: package and environment (`tests/over.py`).
SANDBOXED = frozenset({"examples/retool/README.md", "examples/strands/README.md"})
PACKAGES = {"examples/strands/README.md": "strands"}

#: A task for each Env that no command of its page plays.
TASKS = {
    "Cart": '{"seed": 1}',
    "Doubles": '{"number": 21}',
    "Echo": '{"word": "hello"}',
    "Guess": '{"most": 10}',
    "Shop": '{"wanted": "tea"}',
}


def require(holds: object, said: str) -> None:
    if not holds:
        raise AssertionError(said)


def called(main: Callable[[], object]) -> tuple[int, str]:
    """Exit code and output of a program that is called in this process."""
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        try:
            code = main()
        except SystemExit as ended:
            code = ended.code
    return code if isinstance(code, int) else 1, said.getvalue()


def started(clone: Path, *argv: str) -> tuple[int, str]:
    """Exit code and output of a program that is started, as if no make had started us."""
    env = {name: os.environ[name] for name in os.environ if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(argv, cwd=clone, env=env, capture_output=True, text=True, timeout=500)
    return done.returncode, done.stdout + done.stderr


def check_shell(clone: Path, line: str, words: list[str]) -> None:
    """Done, but that make only says what it would do."""
    code, said = started(clone, "bash", "-euc", f'make() {{ command make -n "$@"; }}\n{line}')
    require(code == 0, said)


def check_python(clone: Path, line: str, words: list[str]) -> None:
    match words[1:]:
        case ["train_async.py" | "train.py" as program, *argv]:
            leave(clone, argv, dry_run(program, argv))
        case ["-m", "pytest", *argv]:
            check_pytest(clone, argv)
        case [script, *_] if script.startswith("examples/"):
            code, said = started(clone, sys.executable, *words[1:])
            require(code == 0, said)
        case _:
            raise AssertionError(f"no test knows how to check `{line}`")


def dry_run(program: str, argv: list[str]) -> str:
    """What it says. A run for GPUs is one on a cluster, so that it does not ask for this host's."""
    more = CLUSTER if any(word.endswith("/real.toml") for word in argv) else []
    with mock.patch.object(sys, "argv", [program, *argv, *more, "--dry-run"]):
        code, said = called(lambda: runpy.run_path(program, run_name="__main__"))
    require(code == 0, said)
    require(said.endswith("nothing was started (--dry-run)\n"), said)
    require("--resume" not in argv or re.search(r"^continuing .*/ID$", said, re.M), said)
    return said


def leave(clone: Path, argv: list[str], said: str) -> None:
    """Have what the run would leave for the next command: the run of a name, and the model that is
    saved somewhere, the shipped one."""
    if "--run-id" in argv:
        (clone / "runs" / argv[argv.index("--run-id") + 1]).symlink_to(clone / "runs" / "ID")
    for place in map(Path, re.findall(r'^  save_hf = "(.+)"$', said, re.M)):
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(MODEL)


def check_pytest(clone: Path, argv: list[str]) -> None:
    """The files are there, the flags are pytest's, the marks of -m are declared."""
    for word in argv:
        require("/" not in word or (ROOT / word.split("::")[0]).exists(), f"there is no {word}")
    code, said = started(clone, sys.executable, "-m", "pytest", "--noconftest", "--markers", *argv)
    require(code == 0, said)
    expression = argv[argv.index("-m") + 1] if "-m" in argv else ""
    for mark in set(re.findall(r"\w+", expression)) - {"not", "and", "or"}:
        require(f"@pytest.mark.{mark}:" in said, f"there is no mark {mark!r}")


def check_agentrl(clone: Path, line: str, words: list[str]) -> None:
    sub_command = words[1:2]
    argv = words[1:] + (["--dry-run"] if sub_command == ["eval"] else [])
    code, said = called(lambda: agentrl_program(argv))
    # What the doctor thinks of this machine is not asked here.
    require(code == 0 or (code == 3 and sub_command == ["doctor"]), said)


def check_tensorboard(clone: Path, line: str, words: list[str]) -> None:
    program = str(Path(sys.executable).with_name("tensorboard"))
    code, said = started(clone, program, *words[1:], "--inspect")
    require(code == 0 and "rollout/reward_mean" in said, said)


def check_download(clone: Path, line: str, words: list[str]) -> None:
    match words[1:]:
        case ["download", name]:
            download(name, None)
        case ["download", name, "--repo-type", "dataset", "--local-dir", folder]:
            download(name, Path(folder))
        case _:
            raise AssertionError(f"no test knows how to check `{line}`")


def check_requirements(clone: Path, line: str, words: list[str]) -> None:
    """The file of `pip install -r FILE` is there, and one of requirements; nothing is installed."""
    locked = ["--require-hashes", "--no-deps"]
    options = words[2:-2] if words[1] == "install" and words[-2] == "-r" else None
    require(options in ([], locked), f"no test knows how to check `{line}`")
    wanted = re.sub(r"\\\n|--hash=\S+|^#.*", "", Path(words[-1]).read_text(), flags=re.M)
    for each in filter(None, map(str.strip, wanted.splitlines())):
        Requirement(each)


CHECKS: dict[str, Callable[[Path, str, list[str]], None]] = {
    "make": check_shell,
    "source": check_shell,
    "printf": check_shell,
    "python": check_python,
    ".venv/bin/python": check_python,
    "agentrl": check_agentrl,
    "tensorboard": check_tensorboard,
    "hf": check_download,
    "pip": check_requirements,
}


def check_command(clone: Path, line: str) -> None:
    words = words_of(line)
    check = CHECKS.get(words[0])
    operators = [word for word in words if set(word) <= set("|&;<>()")]
    if check is None or (operators and (words[0], operators) != ("printf", [">"])):
        raise AssertionError(f"no test knows how to check `{line}`")
    check(clone, line, words)


def check_block(clone: Path, block: Snippet, shown: str) -> None:
    """Save a block of Python. Its Envs (every class but a chat format, an algorithm, a data
    source and a tracker, and a function under `@rollout`) are played by what is `shown`, the
    commands of the page, or else by a dry run with a task from here, as algorithms are; a block
    without any is run."""
    require(not (clone / block.name).exists(), f"{block.name} is there already")
    (clone / block.name).write_text(block.text)
    if f"--env {block.name} " in shown and "@rollout(" in block.text:
        return
    bases = {
        node.name: {ast.unparse(base) for base in node.bases}
        for node in ast.parse(block.text).body
        if isinstance(node, ast.ClassDef)
    }
    others = {"ChatML", "Algorithm", "DataSource", "Tracker", "Session"}
    classes = [name for name, of in bases.items() if not of & others]
    for name in (name for name, of in bases.items() if "Algorithm" in of):
        flags = ["--preset", "search-r1-local", "--advantage-estimator", f"{block.name}:{name}"]
        code, said = started(clone, sys.executable, "train_async.py", *flags, "--dry-run")
        require(code == 0, said)
    for name in classes:
        env = f"{block.name}:{name}"
        if f"--env {env}" in shown:
            continue
        require(name in TASKS, f"no test has a task for {name}: add one to TASKS")
        (clone / "task.jsonl").write_text(TASKS[name])
        flags = ["--preset", "search-r1-local", "--env", env, "--prompt-data", "task.jsonl"]
        # In a process of its own, because a block may register its Env.
        code, said = started(clone, sys.executable, "train_async.py", *flags, "--dry-run")
        require(code == 0, said)
    if not classes:
        with pytest.MonkeyPatch.context() as patch:  # commands load the file anew
            patch.setattr(registry, "_registered", {})
            runpy.run_path(block.name)


def check_groups(clone: Path, text: str) -> None:
    """A file of groups of engines."""
    (clone / "groups.yaml").write_text(text)
    flags = ["--preset", "search-r1-local", "--sglang-config", "groups.yaml"]
    said = dry_run("train_async.py", flags)
    require("server_groups" in said, said)


def check_sets(clone: Path, text: str) -> None:
    """A file of evaluation sets, whose rows are one question."""
    (clone / "sets.yaml").write_text(text)
    for path in {"train.jsonl", *re.findall(r"path: (\S+)", text)}:
        (clone / path).write_text('{"input": "Two and two?", "label": "4"}\n')
    model = ["--hf-checkpoint", str(MODEL), "--n-samples-per-prompt", "4"]
    rows = ["--prompt-data", "train.jsonl", "--eval-config", "sets.yaml"]
    said = dry_run("train_async.py", [*model, *rows])
    require("eval_config" in said, said)


def check_mixture(clone: Path, text: str) -> None:
    """A file of a mixture: as above, and a service that its Env needs is not asked."""
    (clone / "mix.toml").write_text(text)
    for path in re.findall(r'(?:path|prompt_data) = "(\S+)"', text):
        (clone / path).write_text('{"input": "Two and two?", "label": "4"}\n')
    model = ["--hf-checkpoint", str(MODEL), "--n-samples-per-prompt", "4"]
    said = dry_run("train_async.py", [*model, "--env-mix", "mix.toml", "--num-rollout", "9"])
    require("env_mix" in said, said)


def check_snippet(clone: Path, snippet: Snippet, shown: str) -> None:
    match snippet.language:
        case "command":
            check_command(clone, snippet.text)
        case "python":
            check_block(clone, snippet, shown)
        case "yaml":
            check = check_groups if snippet.text.startswith("sglang:") else check_sets
            check(clone, snippet.text)
        case "toml":
            check_mixture(clone, snippet.text)
        case other:
            raise AssertionError(f"no test knows how to check {other}")


def play(page: str, clone: Path) -> list[str]:
    """Check the text `page` in `clone`, the current directory; what failed, with its line."""
    failures = []
    found = list(snippets(page))
    shown = "\n".join(snippet.text for snippet in found if snippet.language == "command")
    for snippet in found:
        try:
            check_snippet(clone, snippet, shown)
        except Exception as failure:
            failures.append(f"line {snippet.line}: {failure}")
    return failures


def skip_without_sandbox(page: Path) -> None:
    if str(page.relative_to(ROOT)) in SANDBOXED:
        bubblewrap()


def environment_of(page: Path) -> str | None:
    """The environment in which a page is to be played; None: this one."""
    package = PACKAGES.get(str(page.relative_to(ROOT)))
    return None if package is None or find_spec(package) else package
