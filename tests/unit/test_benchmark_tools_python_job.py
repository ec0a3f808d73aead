"""The benchmark of `tools-python`: what is run, its page, and what its model is shown."""

import json
import random
import statistics
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.resolve import parse
from agentrl.envs.messages import AssistantTurn
from agentrl.envs.tools_python import ToolsPythonEnv
from agentrl.envs.tools_python.answer import final_number
from agentrl.envs.tools_python.problems import Problem, draw, is_held_out
from agentrl.tokens.chat import ToolCall
from benchmarks import tools_python_job
from scripts.default_job import places
from scripts.default_job.habit import Care
from scripts.tools_python import tool_demonstrations as shows
from scripts.tools_python import tools_python_page
from tests.unit.small_job_results import result, shows_every_seed

ROOT = Path(__file__).resolve().parents[2]

Messages = list[dict[str, Any]]


def demonstrated(care: str, number: int = 60) -> list[tuple[Problem, Messages]]:
    """Demonstrations, and the problem of each: the one that is drawn first."""
    made = []
    for seed in range(number):
        problem = draw(random.Random(seed), held_out=False, kinds=tuple(shows.CALLS))
        made.append((problem, shows.demonstrate(random.Random(seed), Care(care))))
    return made


def test_the_flags_are_those_of_a_run_on_the_kinds_that_were_shown(tmp_path: Path) -> None:
    words = tools_python_job.JOB.flags_of(places.MODEL_DIR, 7, 30, tmp_path / "seed-7")
    config = parse(words, "train_async").config
    assert (config.env, config.num_rollout, config.seed) == ("tools-python", 30, 7)
    assert config.env_args == {"kinds": list(tools_python_job.KINDS)}
    assert tuple(shows.CALLS) == tools_python_job.KINDS
    tasks = ToolsPythonEnv.eval_tasks(config.env_args)["heldout"]
    assert {task.row["kind"] for task in tasks} == set(shows.CALLS)


def test_the_page_shows_every_seed_before_and_after() -> None:
    title = "Held-out problems solved, greedily"
    shows_every_seed(tools_python_page.PAGE, result(tools_python_job.JOB), title)


@pytest.mark.anyio
@pytest.mark.parametrize("care", ["full", "sloppy"])
async def test_a_call_is_answered_as_the_tools_of_the_env_answer_it(care: str) -> None:
    played = set()
    for problem, messages in demonstrated(care, 24):
        env = ToolsPythonEnv()
        env.allow_unsafe_sandbox = True
        (prompt,) = await env.reset(seed=0, task=problem.row())
        asked, called, told, answered = messages
        assert asked["content"] == prompt.content
        function = called["tool_calls"][0]["function"]
        call = ToolCall("call", function["name"], json.dumps(function["arguments"]).encode())
        if function["name"] == "calculator" or problem.kind not in played:
            step = await env.step(AssistantTurn("", [call], None, "stop", 0))
            assert [message.content for message in step.messages] == [told["content"]]
        played.add(problem.kind)
        last = await env.step(AssistantTurn(answered["content"], [], None, "stop", 0))
        assert last.terminated
        assert last.reward == (care == "full")
    assert played == set(shows.CALLS)


def test_who_is_hasty_calls_nothing_and_is_nearly_always_wrong() -> None:
    right = []
    for problem, messages in demonstrated("hasty"):
        assert [message["role"] for message in messages] == ["user", "assistant"]
        right.append(final_number(messages[-1]["content"]) == problem.answer)
    assert statistics.fmean(right) < 0.1


def test_no_evaluated_problem_is_shown() -> None:
    for care in Care:
        for _, messages in demonstrated(care):
            question = messages[0]["content"].partition(" End with")[0]
            assert not is_held_out(question)
