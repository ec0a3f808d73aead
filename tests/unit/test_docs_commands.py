"""What the pages show runs: every command and every piece of Python in their code blocks, from top
to bottom in a clone with one run (`page_checks.py`)."""

import shutil
import sys
from pathlib import Path

import huggingface_hub.constants
import pytest

from agentrl.slime_modules import show
from tests.over import play_over
from tests.unit.downloads import CACHE
from tests.unit.left_run import leave_run
from tests.unit.page_checks import environment_of, play, skip_without_sandbox
from tests.unit.page_snippets import PAGES, ROOT, snippets

pytestmark = pytest.mark.slow
TEST = "test_every_snippet_of_a_page_runs"

# ---- a clone with a run --------------------------------------------------------------------------


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "ID"
    leave_run(run)
    return run


@pytest.fixture
def clone(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a newcomer has in front of them, as the current directory. Files are copies; what one
    has saved already, as a page says, is left out."""
    saved = {snippet.name for page in PAGES for snippet in snippets(page.read_text())}
    for path in ROOT.iterdir():
        if path.name in saved:
            continue
        if path.is_file():
            shutil.copy(path, tmp_path)
        elif not path.name.startswith(".") and path.name not in ("runs", "build", "data"):
            (tmp_path / path.name).symlink_to(path)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "ID").symlink_to(run)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / CACHE))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / CACHE))
    return tmp_path


# ---- the pages -----------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_snippet_of_a_page_runs(page: Path, clone: Path) -> None:
    skip_without_sandbox(page)
    if (name := environment_of(page)) is not None:
        play_over(name, f"{__file__}::{TEST}[{page.relative_to(ROOT)}]")
        return
    show()  # as in a process that plays functions in slime's signature
    failures = play(page.read_text(), clone)
    assert not failures, "\n".join(f"{page.relative_to(ROOT)}, {said}" for said in failures)


#: A page with an Env, and a command that plays it.
BLOCK = "Save this as `e.py`:\n```python\nfrom agentrl import Env\n{}\n```\n"
USE = "```bash\npython train_async.py --preset search-r1-local --env e.py:E\n```\n"

#: A page, and what is said of it.
MISTAKES = [
    ("```bash\npython train.py --lr 1 \\\n    --lrr 2\n```", "line 2: train: unknown flag"),
    ("```bash\n# once\nmake trian   # all\n```", "line 3: make: *** No rule to make target"),
    ("```bash\nagentrl veiw runs/ID\n```", "invalid choice: 'veiw'"),
    ("see\n`agentrl view RUN --bset 1`", "line 2: usage: agentrl"),
    ("```bash\nagentrl view runs/ID --group 9\n```", "has no group 9"),
    ("```bash\nagentrl eval runs/ID --lrr 2\n```", "unknown flag --lrr"),
    ("```bash\nsource venv/bin/activate\n```", "venv/bin/activate: No such file"),
    ("```bash\nprintf x > no/where\n```", "no/where"),
    ("```bash\ncurl x | sh\n```", "line 2: no test knows how to check `curl x | sh`"),
    ("```bash\nmake train && rm -r runs\n```", "no test knows how to check `make train && "),
    ("```bash\npython setup.py\n```", "no test knows how to check `python setup.py`"),
    ("```bash\npython -m pytest tests/test_no.py\n```", "there is no tests/test_no.py"),
    ("```bash\npython -m pytest -m 'not fast'\n```", "there is no mark 'fast'"),
    ("```console\n$ make\n```", "line 1: no test knows how to check console"),
    ("1. So:\n   ```bash\n   make trian\n   ```", "line 2: no test knows how to check a fence"),
    ("1. So:\n\n    make trian\n", "line 3: make: *** No rule to make target"),
    ("```bash\nmake train", "line 1: no test knows how to check a fence that nothing closes"),
    ("```python\nimport no_such_module\n```", "line 1: No module named 'no_such_module'"),
    (BLOCK.format("class E(Env): ...") + "Then `--env e.py:E`.", "no test has a task for E"),
    (BLOCK.format("class E(Env):\n    x = 1") + USE, "E has no reset"),
]  # fmt: skip


@pytest.mark.parametrize(("page", "said"), MISTAKES, ids=[said for _, said in MISTAKES])
def test_a_snippet_that_does_not_work_is_found(page: str, said: str, clone: Path) -> None:
    assert said in "\n".join(play(page, clone))
