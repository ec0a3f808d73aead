"""The command `agentrl check-hook`: a process of its own for each trial, the list of hooks, and the
page that documents them."""

from pathlib import Path

import pytest

from agentrl.cli.hooks.table import HOOKS
from agentrl.cli.main import main
from agentrl.user_code import Kind
from scripts.gen_hooks import PAGE, page

pytestmark = pytest.mark.slow


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_hook_is_tried_in_a_process_of_its_own(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "mine.py").write_text(
        "def f(rewards, task):\n    print('called')\n    return True\n"
        "def g(rewards, task):\n    import os\n    os._exit(0)\n"
    )
    assert main(["check-hook", "dynamic-sampling-filter-path", "mine.py:f"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == "f (mine.py:1) has the signature f(rewards, task), ours"
    assert out.splitlines()[-1] == "ok: a run takes --dynamic-sampling-filter-path mine.py:f"
    assert "called\n" * 2 in err
    assert main(["check-hook", "dynamic-sampling-filter-path", "mine.py:g"]) == 65
    assert "--dynamic-sampling-filter-path mine.py:g ended the process" in capsys.readouterr().err


def test_what_a_function_of_the_learner_raises_is_told_once(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "mine.py").write_text("def f(args, groups):\n    raise KeyError('boom')\n")
    assert main(["check-hook", "rollout-sample-filter-path", "mine.py:f"]) == 65
    said = "--rollout-sample-filter-path mine.py:f: KeyError: 'boom' (mine.py:2)"
    assert capsys.readouterr().err.strip() == f"agentrl: {said}"


def test_a_hook_that_holds_the_interpreter_is_ended_too(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "mine.py").write_text(
        "import re\ndef f(text, label, task):\n"
        "    return bool(re.match('(a+)+$', 'a' * 60 + 'b'))\n"
    )
    for limit in ("3", "15", "60"):  # a busy machine may not come to the function in time
        argv = ["check-hook", "custom-rm-path", "mine.py:f", "--timeout", limit]
        assert main(argv) == 65
        err = capsys.readouterr().err
        assert f"--custom-rm-path mine.py:f did not come to an end within {limit} s; --time" in err
        if "    f (mine.py:3)\n" in err:
            return
    pytest.fail(err)


def test_all_hooks_are_listed_and_one_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-hook"]) == 0
    listed = capsys.readouterr().out
    for hook in HOOKS.values():
        assert f"{hook.name}  ({' '.join(hook.argv)} PATH)" in listed
        for signature in hook.its_kind().accepts:
            assert f"f{hook.head(signature)}".split(",")[0] in listed
    assert main(["check-hook", "--custom-tis-function-path"[2:]]) == 0
    described = capsys.readouterr().out
    assert described in listed
    assert "ours     def f(trained)\n" in described


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("env", "env has a check of its own: agentrl env check mine.py"),
        ("custom-rm-pat", "there is no hook 'custom-rm-pat'; did you mean custom-rm-path?"),
        ("custom-model-provider-path", "-path is no hook here (refused): "),
        ("zzz", "there is no hook 'zzz'; there are custom-rm-path, group-rm, "),
    ],
)
def test_a_name_that_is_no_hook_is_told_what_to_do(
    name: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check-hook", name, "mine.py"]) == 2
    assert said in capsys.readouterr().err


def test_the_page_is_what_its_script_writes() -> None:
    assert page(PAGE.read_text()) == PAGE.read_text(), "run python -m scripts.gen_hooks"


def test_the_page_has_an_example_of_each_hook() -> None:
    shown = PAGE.read_text()
    assert [name for name in HOOKS if f"\nagentrl check-hook {name} " not in shown] == []


def test_each_hook_has_a_kind_and_something_that_tries_it() -> None:
    for hook in HOOKS.values():
        assert isinstance(hook.its_kind(), Kind)
        assert callable(hook.tried_by())
        assert hook.its_kind().accepts or hook.also
