"""The code of `examples/`, and what each folder has to have. Its commands are played with those of
the other pages (`test_docs_commands.py`)."""

import json
import random
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from agentrl.envs.env import Env
from agentrl.envs.messages import AssistantTurn, Step
from agentrl.envs.registry import load_env
from agentrl.errors import InfrastructureError
from agentrl.tokens.chat import ToolCall

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
FOLDERS = sorted(path.parent for path in EXAMPLES.glob("*/README.md"))

in_each = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)


@in_each
def test_a_page_shows_the_small_run_and_the_real_one(folder: Path) -> None:
    page = (folder / "README.md").read_text()
    for name in ("small", "real"):
        assert f".py --config examples/{folder.name}/{name}.toml" in page
    assert f"]({folder.name}/README.md)" in (EXAMPLES / "README.md").read_text()


@in_each
def test_every_file_of_a_folder_is_named_in_it(folder: Path) -> None:
    texts = {path: path.read_text() for path in folder.iterdir() if path.is_file()}
    for path in texts.keys() - {folder / "README.md"}:
        others = (text for other, text in texts.items() if other != path)
        assert any(path.name in text or f"from {path.stem} " in text for text in others), path


@in_each
def test_the_check_of_each_env_is_shown(folder: Path) -> None:
    for name in ("small", "real"):
        env = tomllib.loads((folder / f"{name}.toml").read_text()).get("env", "")
        if env.startswith("examples/"):
            shown = f"agentrl env check {env.partition(':')[0]}"
            assert shown in (folder / "README.md").read_text()


# ---- retool --------------------------------------------------------------------------------------


def said(text: str, *calls: tuple[str, dict[str, Any]]) -> AssistantTurn:
    made = [
        ToolCall(str(n), name, json.dumps(arguments).encode())
        for n, (name, arguments) in enumerate(calls)
    ]
    return AssistantTurn(text, made, None, "stop", 0)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("answer", "computes", "is_evaluation", "reward"),
    [
        ("Answer: 4", False, False, 1.0),
        ("Answer: 5", False, False, 0.0),
        ("Answer: 5", True, False, 0.25),
        ("Answer: 5", True, True, 0.0),
    ],
)
async def test_a_wrong_answer_earns_the_bonus_of_a_program(
    answer: str, computes: bool, is_evaluation: bool, reward: float
) -> None:
    env = load_env("examples/retool/retool.py")(bonus=0.25)
    env.allow_unsafe_sandbox, env.is_evaluation = True, is_evaluation
    row = {"prompt": [{"role": "user", "content": "2 + 2?"}], "label": "4"}
    await env.reset(seed=0, task=row)
    if computes:
        assert not (await env.step(said("", ("python", {"code": "print(2 + 2)"})))).terminated
    step = await env.step(said(answer))
    assert (step.terminated, step.reward) == (True, reward)


# ---- tau_bench -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    path = tmp_path_factory.mktemp("desk") / "tasks.jsonl"
    program = EXAMPLES / "tau_bench" / "tasks.py"
    subprocess.run([sys.executable, program, path], check=True)
    return [json.loads(line) for line in path.read_text().splitlines()]


async def play(env: Env, task: dict[str, Any], turns: list[AssistantTurn]) -> Step:
    await env.reset(seed=0, task=task)
    for turn in turns:
        step = await env.step(turn)
    return step


def shown(task: dict[str, Any]) -> list[AssistantTurn]:
    """The agent's turns of the dialogue that solves a task."""
    turns = []
    for message in task["messages"]:
        if message["role"] == "assistant":
            calls = [call["function"] for call in message.get("tool_calls", [])]
            pairs = [(call["name"], call["arguments"]) for call in calls]
            turns.append(said(message.get("content", ""), *pairs))
    return turns


def pending(orders: dict[str, dict[str, str]]) -> list[str]:
    return [thing for thing, order in orders.items() if order["state"] == "pending"]


@pytest.mark.anyio
async def test_the_orders_that_are_left_decide(tasks: list[dict[str, Any]]) -> None:
    desk = load_env("examples/tau_bench/desk.py")
    rng = random.Random(0)
    careful = [task for task in tasks if '"find"' in json.dumps(task["messages"])]
    assert 0.6 < len(careful) / len(tasks) < 0.7
    for task in rng.sample(careful, 20):
        solved = await play(desk(), task, shown(task))
        assert (solved.reward, solved.terminated) == (1.0, True)
        idle = await play(desk(), task, [said("Done."), said("Yes.")])
        assert idle.reward == float(task["orders"] == task["wanted"])
        for other, things in task["wanted"].items():
            for thing in pending(things):
                more = said("", ("cancel", {"customer": other, "thing": thing}))
                assert (await play(desk(), task, [more, *shown(task)])).reward == 0.0


class Player:
    """A server of OpenAI's chat API that says one line after another."""

    def __init__(self, *lines: str) -> None:
        self.lines = list(lines)
        self.asked: list[dict[str, Any]] = []

    async def complete(self, request: web.Request) -> web.Response:
        self.asked.append(await request.json())
        if not self.lines:
            return web.Response(status=503)
        message = {"role": "assistant", "content": self.lines.pop(0)}
        return web.json_response({"choices": [{"message": message}]})


@pytest.fixture
async def player() -> AsyncIterator[tuple[Player, str]]:
    found, app = Player("To Lima, please.", "Thanks. ###STOP###"), web.Application()
    app.router.add_post("/v1/chat/completions", found.complete)
    async with TestServer(app) as server:
        yield found, str(server.make_url("/v1"))


@pytest.mark.anyio
async def test_a_customer_that_a_model_plays_hears_the_agent_and_ends_it(
    tasks: list[dict[str, Any]], player: tuple[Player, str]
) -> None:
    found, url = player
    env, task = load_env("examples/tau_bench/desk.py")(customer=url, model="its"), tasks[0]
    prompt = await env.reset(seed=0, task=task)
    assert [message.content for message in prompt][1] == task["opening"]
    first = await env.step(said("Where to?"))
    assert [message.content for message in first.messages] == ["To Lima, please."]
    assert (await env.step(said("Done."))).terminated
    roles = [message["role"] for message in found.asked[1]["messages"]]
    assert roles == ["system", "assistant", "user", "assistant", "user"]
    assert task["wish"] in found.asked[0]["messages"][0]["content"]
    with pytest.raises(InfrastructureError, match="does not answer"):
        await env.step(said("Is there more?"))


# ---- multi_agent ---------------------------------------------------------------------------------


class Scripted:
    """A `Chat` that answers each role with what it says next: a text, or a call of `search`."""

    def __init__(self, retriever: str, says: dict[str, list[str]]) -> None:
        self.services = {"retriever": retriever}
        self.says = says
        self.read: dict[str, list[dict[str, Any]]] = {}

    async def complete(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]], *, model: str
    ) -> dict[str, Any]:
        self.read[model] = messages
        text = self.says[model].pop(0)
        if not text.startswith("{"):
            return {"role": "assistant", "content": text}
        call = {"id": "1", "type": "function", "function": {"name": "search", "arguments": text}}
        return {"role": "assistant", "content": None, "tool_calls": [call]}


@pytest.fixture
async def retriever() -> AsyncIterator[str]:
    async def retrieve(request: web.Request) -> web.Response:
        (query,) = (await request.json())["queries"]
        hit = {"document": {"contents": f"about {query}"}}
        return web.json_response({"result": [[hit]]})

    app = web.Application()
    app.router.add_post("/retrieve", retrieve)
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/")


async def quorum(retriever: str, says: dict[str, list[str]], **args: Any) -> tuple[Step, Scripted]:
    chat = Scripted(retriever, says)
    env: Any = load_env("examples/multi_agent/quorum.py")(**args)
    return await env.solve({"question": "Which?", "answer": "Oslo"}, chat), chat


RIGHT, WRONG = "<answer> Oslo </answer>", "<answer> Rome </answer>"


@pytest.mark.anyio
async def test_each_role_of_a_quorum_earns_what_its_own_answer_is_worth(retriever: str) -> None:
    says = {"solver#0": ['{"query": "it"}', WRONG], "solver#1": [RIGHT]}
    says |= {"rewriter#0": [RIGHT], "rewriter#1": [WRONG], "selector": [RIGHT]}
    step, chat = await quorum(retriever, says)
    assert step.rewards == {
        "solver#0": 0.0,
        "solver#1": 1.0,
        "rewriter#0": 1.0,
        "rewriter#1": 0.0,
        "selector": 1.0,
    }
    assert (step.reward, step.metrics) == (1.0, {"passages": 1.0})
    solutions = " The answer is Rome.\n The answer is Oslo."
    assert chat.read["solver#0"][-1]["content"] == "about it"
    assert chat.read["rewriter#0"][-1]["content"] == f"about it\n{solutions}"
    assert chat.read["rewriter#1"] == chat.read["rewriter#0"]
    assert chat.read["selector"][-1]["content"] == " The answer is Oslo.\n The answer is Rome."


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("says", "played"),
    [
        ({"solver#0": ["I do not know."]}, ["solver#0"]),
        ({"solver#0": ['{"query": 1}', "None."]}, ["solver#0"]),
        ({"solver#0": [RIGHT], "rewriter#0": ["Hm."]}, ["solver#0", "rewriter#0"]),
    ],
)
async def test_a_quorum_ends_where_the_next_role_has_nothing_to_read(
    retriever: str, says: dict[str, list[str]], played: list[str]
) -> None:
    step, _ = await quorum(retriever, says, num_parallel=1)
    assert (step.reward, [*step.rewards]) == (0.0, played)


@pytest.mark.anyio
async def test_a_role_of_a_quorum_is_told_what_it_is_to_do(retriever: str) -> None:
    says = {"solver#0": [RIGHT], "rewriter#0": [RIGHT], "selector": [RIGHT]}
    _, chat = await quorum(retriever, says, num_parallel=1, told=True)
    told = [messages[0] for messages in chat.read.values()]
    assert {message["role"] for message in told} == {"system"}
    assert len({message["content"] for message in told}) == 3


# ---- programs ------------------------------------------------------------------------------------


def leave(run: Path, reward: float, weights: bytes) -> Path:
    (run / "hf").mkdir(parents=True)
    (run / "hf" / "model.safetensors").write_bytes(weights)
    metrics = {"rollout/reward_mean": reward, "train/loss": 0.5, "perf/push_s": reward}
    lines = [
        {"eval": {}},
        {"metrics": metrics | {"rollout/reward_mean": 0.0}},
        {"metrics": metrics},
    ]
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return run


def program(name: str, *words: object) -> tuple[int, str]:
    command = [sys.executable, str(EXAMPLES / name), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, done.stdout


def test_runs_are_compared_by_what_they_sampled_and_learnt(tmp_path: Path) -> None:
    first, other = leave(tmp_path / "a", 0.25, b"w"), leave(tmp_path / "b", 0.5, b"w")
    compare = "reproducibility/compare.py"
    assert program(compare, first, first)[0] == 0
    code, told = program(compare, first, other)
    assert (code, told) == (1, "iteration 2: rollout/reward_mean\n")
    changed = leave(tmp_path / "c", 0.25, b"v")
    assert program(compare, first, changed) == (1, "hf/model.safetensors\n")


def test_metrics_are_printed_by_iteration(tmp_path: Path) -> None:
    code, told = program("metrics.py", leave(tmp_path / "a", 0.25, b""), "train/loss", "no/such")
    assert code == 0
    assert [line.split() for line in told.splitlines()] == [
        ["iteration", "train/loss", "no/such"],
        ["1", "0.5"],
        ["2", "0.5"],
    ]
