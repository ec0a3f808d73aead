"""The benchmark of `units/convert`: what is run, its page, and what its model is shown."""

import asyncio
import json
import random
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentrl import AssistantTurn, ToolCall
from agentrl.config.resolve import parse
from tests.unit.small_job_results import result, shows_every_seed

ROOT = Path(__file__).resolve().parents[2]
with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(ROOT / "envs_contrib" / "units")
    import agentrl_units as units
    from agentrl_units import table

    from benchmarks import units_job
    from scripts.default_job import places
    from scripts.default_job.habit import Care
    from scripts.units import rash, units_page

Messages = list[dict[str, Any]]


def demonstrated(care: str, number: int = 60) -> list[Messages]:
    return [rash.demonstrate(random.Random(seed), Care(care)) for seed in range(number)]


def question_of(messages: Messages) -> Any:
    """The question that a dialogue is about."""
    *_, target, _, amount, source = messages[0]["content"].removesuffix("?").split()
    found = [unit for name in (source, target) if (unit := table.find(name))]
    return table.Question(int(amount), *(unit.name for unit in found))


def test_the_flags_are_those_of_a_run(tmp_path: Path) -> None:
    words = units_job.JOB.flags_of(places.MODEL_DIR, 7, 15, tmp_path / "seed-7")
    config = parse(words, "train_async").config
    assert (config.num_rollout, config.seed) == (15, 7)
    assert config.env == f"{units.__name__}:{units.ConvertEnv.__name__}"


def test_what_is_started_finds_the_package_though_it_is_not_installed(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import agentrl_units, sys; open(sys.argv[1], 'w').write('found')")
    units_job.JOB.start(program, tmp_path / "found")
    assert (tmp_path / "found").read_text() == "found"
    elsewhere = msgspec.structs.replace(units_job.JOB, package=tmp_path)
    with pytest.raises(subprocess.CalledProcessError):
        elsewhere.start(program, tmp_path / "found")


def test_the_page_shows_every_seed_before_and_after() -> None:
    shows_every_seed(
        units_page.PAGE, result(units_job.JOB), "Held-out questions answered, greedily"
    )


@pytest.mark.parametrize("care", ["full", "sloppy"])
def test_with_care_a_question_is_answered_rightly_and_else_wrongly(care: str) -> None:
    for messages in demonstrated(care, 30):
        told, reward = asyncio.run(played(messages))
        assert told == [said["content"] for said in messages if said["role"] == "tool"]
        assert len(told) == 4
        assert reward == (care == "full")


async def played(messages: Messages) -> tuple[list[str], float | None]:
    """What the tools say to the calls of a dialogue, and what its answer is worth."""
    env, told = units.ConvertEnv(), []
    (prompt,) = await env.reset(seed=0, task=question_of(messages)._asdict())
    assert prompt.content == messages[0]["content"]
    for said in messages[1:]:
        if said["role"] == "assistant":
            functions = [call["function"] for call in said.get("tool_calls", [])]
            calls = [
                ToolCall(f"call_0_{number}", f["name"], json.dumps(f["arguments"]).encode())
                for number, f in enumerate(functions)
            ]
            turn = AssistantTurn(said.get("content", ""), calls, None, "stop", 0)
            step = await env.step(turn)
            told += [message.content for message in step.messages]
    assert step.terminated
    return told, step.reward


def test_who_is_hasty_calls_nothing_and_is_wrong() -> None:
    for messages in demonstrated("hasty"):
        assert [message["role"] for message in messages] == ["user", "assistant"]
        assert float(messages[1]["content"]) != question_of(messages).answer


def test_no_pair_that_is_evaluated_is_shown_and_nearly_every_other_is() -> None:
    evaluated = {frozenset(question[1:]) for question in table.eval_questions()}
    shown = {frozenset(question_of(messages)[1:]) for messages in demonstrated("hasty", 400)}
    assert len(shown) > 20
    assert not shown & evaluated
