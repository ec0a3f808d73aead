"""`agentrl env`: what is listed, written, checked and played."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from anyio.from_thread import start_blocking_portal

import agentrl.envs.search_r1
from agentrl.cli.main import main
from agentrl.cli.train import main as train
from agentrl.envs.registry import known_envs
from agentrl.tokens.formats.load import load_format

pytestmark = pytest.mark.slow

SERVED = """
import sys
from agentrl import Env, Message, ServiceSpec

class Served(Env):
    reward_reads_text_only = True

    @classmethod
    def service_specs(cls, args):
        argv = [sys.executable, "-m", "http.server", "{port}", "--bind", "{host}"]
        return {"files": ServiceSpec("files", argv, args.get("ready", "/"))}

    async def reset(self, *, seed, task):
        return [Message.user(f"{task['question']} {sorted(self.services)}")]

    async def score(self, text):
        return float(self.services["files"].startswith("http://127.0.0.1:"))
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_known_env_is_listed_with_who_brings_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines} == set(known_envs())
    assert any(line.startswith("search-r1-local ") and "agentrl" in line for line in lines)


def test_a_new_env_keeps_every_promise_and_says_what_comes_next(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["env", "new", "my_sums"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[:2] == ["wrote my_sums.py", "wrote my_sums.jsonl"]
    check = said[2].split()
    assert check[0] == "agentrl"
    assert main(check[1:]) == 0
    out = capsys.readouterr().out
    assert "BAD" not in out
    assert out.endswith("MySums: every promise is kept\n")
    model = Path(agentrl.envs.search_r1.__file__).parent / "model"
    flags = said[4].replace("MODEL", str(model)).split()[2:]
    assert train([*flags, "--rollout-max-response-len", "32", "--dry-run"], "train_async") == 0
    capsys.readouterr()
    assert main(["env", "new", "my_sums"]) == 2
    assert "is there already" in capsys.readouterr().err
    for name in ("My-Sums", "none", "class", "message", "json", "agentrl"):
        assert main(["env", "new", name]) == 2
        assert "no name for a module" in capsys.readouterr().err


def test_an_episode_is_played_by_hand(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    main(["env", "new", "sums"])
    flags = ["env", "play", "sums.py", "--prompt-data", "sums.jsonl"]
    monkeypatch.setattr("sys.stdin", io.StringIO('add {"a": 2, "b": 11}\nadd oops\n13\n'))
    capsys.readouterr()
    assert main(flags) == 0
    out = capsys.readouterr().out
    assert "[user] What is 2 plus 11?" in out
    assert 'a tool, as in: add {"a":1,"b":1}' in out
    assert "[tool] 13" in out
    assert "[tool] error: the arguments of add are not valid JSON" in out
    assert out.endswith("terminated after 3 turns, reward 1\n")
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert main(flags) == 0
    assert capsys.readouterr().out.endswith("left before its end: no reward\n")


@contextmanager
def serving(model: Path, turns: list[str]) -> Iterator[str]:
    """The URL of a server that says of itself what SGLang does, and samples `turns` in order."""
    vocab = load_format("qwen", model).vocab

    async def about(request: web.Request) -> web.Response:
        facts = {"weight_version": "default", "model_path": str(model)}
        return web.json_response(facts | {"max_req_input_len": 400, "context_length": 400})

    async def generate(request: web.Request) -> web.Response:
        ids = vocab.encode_trusted(turns.pop(0))
        meta: dict[str, Any] = {
            "finish_reason": {"type": "stop", "matched": ids[-1]},
            "output_token_logprobs": [[-0.5, token, None] for token in ids],
        }
        return web.json_response({"output_ids": ids, "meta_info": meta})

    async def start() -> web.AppRunner:
        app = web.Application()
        app.router.add_get("/server_info", about)
        app.router.add_get("/model_info", about)
        app.router.add_post("/generate", generate)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner

    with start_blocking_portal("asyncio") as portal:
        runner = portal.call(start)
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            portal.call(runner.cleanup)


def test_an_episode_is_played_by_a_served_model(capsys: pytest.CaptureFixture[str]) -> None:
    main(["env", "new", "sums"])
    model = Path(agentrl.envs.search_r1.__file__).parent / "model"
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 11}}\n</tool_call><|im_end|>'
    flags = ["env", "play", "sums.py", "--prompt-data", "sums.jsonl"]
    capsys.readouterr()
    with serving(model, [call, "13<|im_end|>"]) as url:
        assert main([*flags, "--url", url]) == 0
    out = capsys.readouterr().out
    assert "-- turn 0, assistant --\n  <tool_call>" in out
    assert "  <tool_response>\n  13\n" in out
    assert out.endswith("-- turn 1, assistant --\n  13\ndone, stopped by terminated: reward 1\n")


def test_a_model_that_nobody_serves_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    main(["env", "new", "sums"])
    flags = ["env", "play", "sums.py", "--prompt-data", "sums.jsonl"]
    assert main([*flags, "--url", "http://127.0.0.1:9"]) != 0
    assert "the server http://127.0.0.1:9: GET /server_info failed" in capsys.readouterr().err


def test_a_check_says_first_what_the_model_may_call(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["env", "new", "sums"])
    source = (here / "sums.py").read_text()
    capsys.readouterr()
    assert main(["env", "check", "sums.py", "--prompt-data", "sums.jsonl"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first == "environment Sums; tools of the model: add(a, b)"
    (here / "bare.py").write_text(source.replace("    @tool\n", ""))
    main(["env", "check", "bare.py", "--prompt-data", "sums.jsonl"])
    assert "tools of the model: none before reset (`@tool` above" in capsys.readouterr().out


def test_a_row_that_is_malformed_is_found_wherever_it_stands(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["env", "new", "sums"])
    with (here / "sums.jsonl").open("a") as file:
        file.write('{"question": \n')
    assert main(["env", "check", "sums.py", "--prompt-data", "sums.jsonl"]) == 65
    assert "sums.jsonl" in capsys.readouterr().err


def test_a_call_that_is_written_as_a_model_would_is_told_how_to_write_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    main(["env", "new", "sums"])
    lines = '<tool_call>{"name": "add"}\nadds {"a": 1}\n13\n'
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    assert main(["env", "play", "sums.py", "--prompt-data", "sums.jsonl"]) == 0
    out = capsys.readouterr().out
    assert "here a tool is called as it says above" in out
    assert "there is no tool 'adds'; did you mean 'add'?" in out
    assert out.endswith("terminated after 1 turns, reward 1\n")


@pytest.mark.parametrize(
    ("was", "becomes", "line", "said"),
    [
        (
            "return float(",
            "return {}[text] + float(",
            "13\n",
            "KeyError: '13' (sums.py:",
        ),
        ("return a + b", "return a // 0", 'add {"a": 1, "b": 2}\n', "by zero (sums.py:"),
        (
            "self.answer = ",
            "self.answer = self.none = 1 / 0 * ",
            "",
            "reset raised ZeroDiv",
        ),
    ],
)
def test_what_an_env_raises_as_it_is_played_is_told_with_its_line(
    was: str,
    becomes: str,
    line: str,
    said: str,
    here: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    main(["env", "new", "sums"])
    source = (here / "sums.py").read_text()
    assert was in source
    (here / "sums.py").write_text(source.replace(was, becomes))
    monkeypatch.setattr("sys.stdin", io.StringIO(line))
    assert main(["env", "play", "sums.py", "--prompt-data", "sums.jsonl"]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert "Traceback" not in told


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("env chekc sums.py", "invalid choice: 'chekc'; did you mean check?"),
        ("env check sums.py --envargs {}", "there is no --envargs; did you mean --env-args?"),
        ("env play sums.py --seeed=3", "there is no --seeed; did you mean --seed?"),
        ("env check one.py two.py", "'two.py' is one word too many"),
        ("env check one.py --zzz", "there is no --zzz; --help tells what there is"),
        ("envs", "invalid choice: 'envs'; did you mean env?"),
        ("zzz", "invalid choice: 'zzz'; choose from train-async, train, audit"),
    ],
)
def test_a_mistyped_word_is_answered_with_the_nearest(
    argv: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(argv.split())
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_a_broken_promise_is_exit_code_1(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["env", "new", "sums"])
    source = (here / "sums.py").read_text()
    (here / "bad.py").write_text(source.replace("float(text.strip() ==", "float(text ==").replace(
        'task["question"]', 'task["question"] + str(id(self))'
    ))  # fmt: skip
    assert main(["env", "check", "bad.py", "--prompt-data", "sums.jsonl"]) == 1
    out = capsys.readouterr().out
    assert "BAD the same seed and task give the same prompt" in out
    assert out.endswith("1 promise is broken\n")


def test_an_envs_services_run_while_it_is_checked(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "served.py").write_text(SERVED)
    (here / "rows.jsonl").write_text('{"question": "Who?"}\n')
    flags = ["env", "check", "served.py", "--prompt-data", "rows.jsonl"]
    assert main(flags) == 0
    assert "every promise is kept" in capsys.readouterr().out


def test_a_service_that_does_not_come_up_is_exit_code_3(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentrl.cli.env.START_S", 0.5)
    (here / "served.py").write_text(SERVED)
    (here / "rows.jsonl").write_text('{"question": "Who?"}\n')
    flags = ["env", "check", "served.py", "--prompt-data", "rows.jsonl"]
    assert main([*flags, "--env-args", '{"ready": "/nothing"}']) == 3
    assert "files (http://127.0.0.1:" in capsys.readouterr().err


def test_a_service_whose_program_is_missing_is_exit_code_3(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "served.py").write_text(SERVED.replace("sys.executable", '"no-such-program"'))
    (here / "rows.jsonl").write_text('{"question": "Who?"}\n')
    assert main(["env", "check", "served.py", "--prompt-data", "rows.jsonl"]) == 3
    assert "service files cannot be started" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["check", "nowhere"], "there is no environment 'nowhere'"),
        (["check", "single-turn"], "brings no tasks of its own; give it --prompt-data"),
    ],
)
def test_what_cannot_be_tried_is_exit_code_2(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["env", *argv]) == 2
    assert said in capsys.readouterr().err


def test_arguments_that_are_no_object_are_a_wrong_command_line() -> None:
    with pytest.raises(SystemExit) as end:
        main(["env", "check", "single-turn", "--env-args", "[1]"])
    assert end.value.code == 2


def test_a_check_that_left_something_out_does_not_say_that_all_is_well(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["env", "new", "sums"])
    source = (here / "sums.py").read_text()
    hint = "a: __import__('typing').Annotated[str, __import__('msgspec').Meta(pattern='^x$')]"
    (here / "sums.py").write_text(source.replace("a: int", hint).replace("a + b", "b"))
    capsys.readouterr()
    assert main(["env", "check", "sums.py", "--prompt-data", "sums.jsonl"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "--  whatever the policy says is answered" in lines
    assert lines[-1] == "Sums: what could be tried is kept"


def test_a_model_whose_template_shows_no_tools_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["env", "new", "sums"])
    flags = ["--preset", "search-r1-local", "--env", "sums.py", "--prompt-data", "sums.jsonl"]
    assert train([*flags, "--dry-run"], "train_async") == 0
    assert "shows no tools: a model is not told of those of its Env" in capsys.readouterr().out
