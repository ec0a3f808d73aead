"""Whatever conversations an agent holds with its model, and however it writes them down: each
sampled token is trained once, after what the engine was given, and a history that only grew is
continued id for id."""

import copy
import json
from typing import Any

import anyio
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from agentrl.actors.endpoint.history import history_key
from agentrl.actors.endpoint.requests import read_request
from agentrl.envs.rollout import Chat
from agentrl.types import Outcome
from tests.unit.rollout_ground import ASSIGNMENT, CALL, DOUBLE, Policy, check_tokens, play

Conversation = list[dict[str, Any]]

#: What a policy may sample besides words.
PARTS = st.sampled_from(
    [CALL.removesuffix("<|im_end|>"), "<think>so</think>", "<tool_call>", "\n", " ", "ä漢", "42"]
)
ANSWERS = st.lists(PARTS | st.text(max_size=6), max_size=4).map("".join)
WORDS = st.text(max_size=8)


def say_again(draw: Any, message: dict[str, Any]) -> dict[str, Any]:
    """The same message as another client would write it."""
    message = copy.deepcopy(message)
    for call in message.get("tool_calls", []):
        arguments = json.loads(call["function"]["arguments"])
        indent = draw(st.sampled_from([None, 1]))
        call["function"]["arguments"] = json.dumps(arguments, indent=indent)
    if message["role"] == "assistant":
        content = message["content"]
        if isinstance(content, list):
            content = content[0]["text"]
        match draw(st.integers(0, 3)):
            case 0:
                message["content"] = content or draw(st.sampled_from([None, ""]))
            case 1:
                message["content"] = [{"type": "text", "text": content or ""}]
            case 2 if content is not None:
                message["content"] = f" {content}\n"
            case _:
                message["content"] = content
        message |= draw(
            st.sampled_from([{}, {"refusal": None}, {"audio": None, "annotations": []}])
        )
    keys = draw(st.permutations(list(message)))
    return {key: message[key] for key in keys}


class Agent:
    """Draws what to do next. `spoken`: conversations that end with an answer, and the ids that the
    engine has seen and sampled in it."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.spoken: list[tuple[Conversation, list[int]]] = []
        self.policy = Policy(self.answer)
        self.twins = draw(st.booleans())

    def answer(self, prompt: str) -> str:
        number = 0 if self.twins else len(self.policy.prompts)
        text = self.draw(ANSWERS)
        return f"{number} {text}{self.draw(st.sampled_from(['', '<|im_end|>']))}"

    async def solve(self, task: dict[str, Any], chat: Chat) -> float:
        for _ in range(self.draw(st.integers(1, 8))):
            match self.draw(st.integers(0, 4)):
                case 0:
                    await self.call(chat, [{"role": "user", "content": self.draw(WORDS)}], [])
                case 1 if self.spoken:
                    await self.rewrite(chat)
                case 2 if self.spoken:
                    async with anyio.create_task_group() as group:
                        for _ in range(self.draw(st.integers(2, 3))):
                            group.start_soon(self.go_on, chat)
                case _:
                    await self.go_on(chat)
        return 1.0

    async def go_on(self, chat: Chat) -> None:
        """Any conversation so far, the latest or an earlier one, with something more said."""
        if not self.spoken:
            await self.call(chat, [{"role": "user", "content": "begin"}], [])
        said, seen = self.draw(st.sampled_from(self.spoken))
        messages = [say_again(self.draw, message) for message in said]
        messages += [
            {"role": "tool", "tool_call_id": call["id"], "content": self.draw(WORDS)}
            for call in messages[-1].get("tool_calls", [])
        ]
        if self.draw(st.booleans()):
            messages.append({"role": "user", "content": self.draw(WORDS)})
        await self.call(chat, messages, seen)

    async def rewrite(self, chat: Chat) -> None:
        """A conversation in which something was left out or put in other words."""
        said, _ = self.draw(st.sampled_from(self.spoken))
        messages = copy.deepcopy(said)
        at = self.draw(st.integers(0, len(messages) - 1))
        if self.draw(st.booleans()):
            messages[at]["content"] = f"rewritten {self.draw(WORDS)}"
        else:
            del messages[at]
        await self.call(chat, [*messages, {"role": "user", "content": "go on"}], [])

    async def call(self, chat: Chat, messages: Conversation, seen: list[int]) -> None:
        answer = await chat.complete(messages, [DOUBLE])
        prompt, ids = self.policy.asked[-1]
        if not self.twins:
            assert prompt[: len(seen)] == seen, "a history that only grew was written anew"
        self.spoken.append(([*messages, answer], prompt + ids))


# A smaller failure is not worth the minutes that episodes take to shrink.
@given(st.data())
@settings(max_examples=60, phases=set(Phase) - {Phase.shrink, Phase.explain})
def test_every_sampled_token_is_trained_once_after_what_the_engine_saw(data: Any) -> None:
    agent = Agent(data.draw)
    played = anyio.run(lambda: play(agent.solve, agent.policy))
    assert played.report.outcome is Outcome.DONE, played.report.error
    check_tokens(played, agent.policy)


@given(st.data())
def test_the_look_of_a_history_is_not_its_meaning(data: Any) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"b":1,"a":[]}'}}
    said: Conversation = [
        {"role": "user", "content": data.draw(WORDS)},
        {"role": "assistant", "content": data.draw(WORDS), "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": data.draw(WORDS)},
    ]
    again = [say_again(data.draw, message) for message in said]
    assert key_of(again) == key_of(said)
    changed = copy.deepcopy(said)
    at = data.draw(st.integers(0, 2))
    changed[at]["content"] += "x"
    assert key_of(changed) != key_of(said)


def key_of(said: Conversation) -> bytes:
    request = read_request({"messages": said, "tools": [DOUBLE]}, ASSIGNMENT.sampling)
    return history_key(request.role, request.tools, request.messages)
