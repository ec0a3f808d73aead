"""The contract checker: a sound Env keeps every promise, and each planted fault is named."""

import asyncio
import random
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import anyio
import msgspec
import pytest

from agentrl.bounds import A_REWARD
from agentrl.envs.check import contract
from agentrl.envs.check.contract import PROMISES, check_contract
from agentrl.envs.check.subject import Subject
from agentrl.envs.env import Env
from agentrl.envs.messages import AssistantTurn, Message, Step
from agentrl.errors import ConfigError, InfrastructureError
from agentrl.tools.tool import tool
from agentrl.types import MAX_SNAPSHOT_BYTES, Task

pytestmark = pytest.mark.slow
TASK = Task("t", {"question": "Double 21."})
ENDS = (asyncio.CancelledError, SystemExit, KeyboardInterrupt, GeneratorExit)


class Sound(Env):
    """Keeps all promises, a snapshot's too."""

    drawn = 0

    async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
        self.drawn = random.Random(seed).randrange(10**9)
        return [Message.user(f"{task['question']} {self.drawn}")]

    @tool
    async def double(self, number: int) -> int:
        """Double a number.

        Args:
            number: what to double
        """
        return 2 * number

    async def score(self, text: str) -> float:
        return float(text.strip() == "42") + self.drawn % 2

    async def snapshot(self) -> bytes:
        return str(self.drawn).encode()

    async def restore(self, state: bytes, *, seed: int, task: dict[str, Any]) -> None:
        self.drawn = int(state)


class OtherPrompt(Sound):
    async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
        return [Message.user(str(random.random()))]


class OtherAnswers(Sound):
    async def score(self, text: str) -> float:
        return random.random()


class Fragile(Sound):
    async def score(self, text: str) -> float:
        return float(text)


class Closed(Sound):
    handle: list[int] | None = None

    async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
        await anyio.sleep(0.01)
        self.handle = [1]
        return await super().reset(seed=seed, task=task)

    async def close(self) -> None:
        assert self.handle is not None
        self.handle.clear()


class Selfish(Sound):
    async def step(self, turn: AssistantTurn) -> Step:
        time.sleep(0.06)  # noqa: ASYNC251
        return await super().step(turn)


class Forgetful(Sound):
    """Knows its task again, and not what it has heard."""

    heard = 0

    async def step(self, turn: AssistantTurn) -> Step:
        self.heard += 1
        return Step(messages=[Message.user(f"{self.heard}")], terminated=turn.text == "42")


class Wrong(Sound):
    """Its tool is wrong whatever it is called with."""

    @tool
    async def halve(self, number: int) -> int:
        """Halve a number."""
        return len(str(number)) // 0


class Shy(Sound):
    """Its tool is wrong on what nobody thought of."""

    @tool
    async def first(self, words: str) -> str:
        """The first word."""
        return words.split()[0]


class Slow(Sound):
    @tool
    async def wait(self, number: int) -> int:
        """Wait."""
        time.sleep(0.06)  # noqa: ASYNC251
        return number


class Heavy(Sound):
    async def snapshot(self) -> bytes:
        return b"1" * (MAX_SNAPSHOT_BYTES + 1)


def broken(cls: type[Env]) -> dict[str, str]:
    """Promises that are not kept, and why."""
    found = {f.promise: f.problem for f in check_contract(Subject(cls, {}, TASK))}
    declared = "its reward reads nothing but the text, as it declares"
    assert {declared, *found} == {*PROMISES}
    return {promise: problem for promise, problem in found.items() if problem is not None}


def test_a_sound_env_keeps_every_promise() -> None:
    assert broken(Sound) == {}


@pytest.mark.parametrize(
    ("cls", "promise", "said"),
    [
        (OtherPrompt, "the same prompt", "draw from random.Random(seed) alone"),
        (OtherAnswers, "the same answers", "an answer differently the second time (its reward)"),
        (Fragile, "is answered", "Fragile.step raised ValueError: could not convert"),
        (Closed, "closed at any moment", "Closed.close raised AssertionError"),
        (Selfish, "leaves the event loop", "Selfish.step, on an answer, held the event loop"),
        (
            Wrong,
            "is answered",
            "by zero (tests/unit/test_envs_contract.py:",
        ),
        (Wrong, "is answered", 'on a call of halve with {"number":1}: if this is a bug, mend'),
        (
            Wrong,
            "is answered",
            "if the policy made a mistake, tell it so in a message (a tool does",
        ),
        (Shy, "is answered", "raised IndexError: list index out of range (tests/unit/test_envs_"),
        (Shy, "is answered", 'on a call of first with {"words":""}'),
        (Slow, "leaves the event loop", 'Slow.step, on a call of wait with {"number":1}, held the'),
        (Forgetful, "what is restored", "answers differently when it was restored, after"),
        (Heavy, "what is restored", "over 8388608 none is kept"),
    ],
)
def test_a_broken_promise_is_named_with_what_breaks_it(
    cls: type[Env], promise: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    found = [problem for name, problem in broken(cls).items() if promise in name]
    assert len(found) == 1, found
    assert said in found[0]


def test_tools_that_an_env_finds_in_reset_are_tried_too() -> None:
    class Late(Sound):
        async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
            self.tools = Wrong.tools
            return await super().reset(seed=seed, task=task)

    problems = broken(Late).values()
    assert any("a call of halve with" in problem for problem in problems)


def test_a_tool_that_no_call_could_be_made_up_for_is_noted_and_an_example_helps() -> None:
    class Patterned(Sound):
        @tool
        async def fly(self, to: Annotated[str, msgspec.Meta(pattern="^[A-Z]{3}$")]) -> str:
            """Fly there."""
            return {"OSL": "snow"}[to]

    class Told(Sound):
        @tool
        async def fly(
            self, to: Annotated[str, msgspec.Meta(pattern="^[A-Z]{3}$", examples=["LIS"])]
        ) -> str:
            """Fly there."""
            return {"OSL": "snow"}[to]

    assert broken(Patterned) == {}
    (note,) = [f.note for f in check_contract(Subject(Patterned, {}, TASK)) if f.note]
    assert note.startswith("no value could be made up that fits fly(to): give an example")
    assert "raised KeyError: 'LIS'" in broken(Told)["whatever the policy says is answered"]


def test_an_env_that_saves_nothing_is_not_praised_for_it() -> None:
    class Unsaved(Env):
        reset, score = Sound.reset, Sound.score
        drawn = 0

    found = {finding.promise for finding in check_contract(Subject(Unsaved, {}, TASK))}
    assert "what is restored goes on as what was saved" in {*PROMISES} - found


def test_an_example_that_does_not_fit_is_named() -> None:
    class Mistaken(Sound):
        @tool
        async def fly(
            self, to: Annotated[str, msgspec.Meta(pattern="^[A-Z]{3}$", examples=["Oslo"])]
        ) -> str:
            """Fly there."""
            return to

    (note,) = [f.note for f in check_contract(Subject(Mistaken, {}, TASK)) if f.note]
    assert "fits fly(to (its example 'Oslo' may not fit))" in note


def test_what_raises_is_told_once_and_in_the_name_of_the_tool() -> None:
    (said,) = broken(Wrong).values()
    assert said.startswith("tool halve (call call_0_0) raised ZeroDivisionError")
    notes = [f.note for f in check_contract(Subject(Wrong, {}, TASK)) if f.note]
    assert set(notes) == {"not tried to its end: the error that is told above ended it"}


def test_a_score_that_is_no_number_is_told_without_advice_on_the_policy() -> None:
    class Wordy(Sound):
        async def score(self, text: str) -> float:
            return "good"  # type: ignore[return-value]

    said = broken(Wordy)["whatever the policy says is answered"]
    assert f"Wordy.score returned 'good'; return {A_REWARD}" in said
    assert said.endswith(", on an answer")


def test_a_reward_that_reads_what_tools_did_breaks_the_word_of_its_env() -> None:
    class Tempting(Sound):
        reward_reads_text_only = True
        num_calls = 0

        @tool
        async def cheat(self) -> str:
            """Cheat."""
            self.num_calls += 1
            return "done"

        async def score(self, text: str) -> float:
            return float(self.num_calls)

    class Honest(Tempting):
        reward_reads_text_only = False

    declared = "its reward reads nothing but the text, as it declares"
    said = broken(Tempting)[declared]
    assert "gives the answer '42' 0 at once, but 1 after a call of cheat with {}" in said
    assert declared not in broken(Honest)


def test_tools_are_tried_that_are_gone_after_close() -> None:
    class Tidy(Sound):
        async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
            self.tools = dict(Wrong.tools)
            return await super().reset(seed=seed, task=task)

        async def close(self) -> None:
            vars(self)["tools"].clear()

    assert any("a call of halve with" in problem for problem in broken(Tidy).values())


def test_an_env_that_swallows_its_cancellation_has_taken_too_long_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Deaf(Sound):
        async def step(self, turn: AssistantTurn) -> Step:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(1000)
            return Step(terminated=True)

    monkeypatch.setattr(contract, "LIMIT_S", 0.2)
    assert broken(Deaf)["whatever the policy says is answered"].endswith("0.2 s on an answer")


@pytest.mark.parametrize("kind", [*ENDS, TimeoutError])
def test_whatever_a_tool_raises_is_told_with_the_call(kind: type[BaseException]) -> None:
    class Raising(Sound):
        async def step(self, turn: AssistantTurn) -> Step:
            raise kind

    said = broken(Raising)["whatever the policy says is answered"]
    assert f"Raising.step raised {kind.__name__}" in said
    assert "on an answer" in said


def test_what_reset_and_close_raise_is_theirs_and_the_env_is_closed() -> None:
    class Unlucky(Sound):
        num_open = 0

        async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
            type(self).num_open += 1
            if type(self).num_open > 3:
                raise RuntimeError("one too many")
            return await super().reset(seed=seed, task=task)

        async def close(self) -> None:
            type(self).num_open -= 1

    class Grumpy(Sound):
        async def step(self, turn: AssistantTurn) -> Step:
            self.played = True
            return await super().step(turn)

        async def close(self) -> None:
            if getattr(self, "played", False):
                raise RuntimeError("so late")

    only = "whatever the policy says is answered"
    assert only not in broken(Unlucky)
    assert "Grumpy.close raised RuntimeError: so late" in broken(Grumpy)[only]


def test_long_arguments_are_cut_in_what_is_said() -> None:
    class Long(Sound):
        @tool
        async def read(self, page: Annotated[str, msgspec.Meta(min_length=20_000)]) -> str:
            """Read."""
            raise RuntimeError("no")

    assert len(broken(Long)["whatever the policy says is answered"]) < 1000


def test_a_loop_that_is_held_once_by_a_busy_machine_is_no_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Once(Sound):
        num_resets = 0

        async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
            type(self).num_resets += 1
            if type(self).num_resets == 1:
                time.sleep(0.06)  # noqa: ASYNC251
            return await super().reset(seed=seed, task=task)

    only = {"it leaves the event loop to the others": contract._leaves_the_loop}
    monkeypatch.setattr(contract, "PROMISES", only)
    monkeypatch.setattr(contract, "dry_reset", lambda *_, **__: None)
    assert [finding.problem for finding in check_contract(Subject(Once, {}, TASK))] == [None]
    assert Once.num_resets > 1


def test_an_env_that_hangs_is_left_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hung(Sound):
        async def step(self, turn: AssistantTurn) -> Step:
            await anyio.sleep_forever()
            raise AssertionError

    monkeypatch.setattr(contract, "LIMIT_S", 0.2)
    assert "Hung took more than 0.2 s on an answer" in " ".join(broken(Hung).values())


def test_what_goes_on_after_close_is_seen() -> None:
    class Busy(Sound):
        async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
            self.work = asyncio.create_task(asyncio.sleep(60), name="watcher")
            return await super().reset(seed=seed, task=task)

    (problem,) = broken(Busy).values()
    assert "tasks go on after" in problem
    assert problem.endswith("Busy.close: watcher, watcher")


def test_a_service_that_is_away_is_no_broken_promise() -> None:
    class Away(Sound):
        async def step(self, turn: AssistantTurn) -> Step:
            raise InfrastructureError("the retriever is away")

    with pytest.raises(InfrastructureError, match="away"):
        broken(Away)


def test_an_env_without_a_prompt_cannot_be_tried() -> None:
    class Promptless(Sound):
        async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
            return []

    with pytest.raises(ConfigError, match="an empty list"):
        broken(Promptless)
