"""A hostile client, or hostile text in an honest one's messages: whatever stands in a request, no
control token is forged, no call, and nothing is trained that was not sampled."""

import json
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from agentrl.actors.endpoint.recorder import CallRecorder
from agentrl.actors.endpoint.server import Endpoint
from agentrl.envs.rollout import Chat
from agentrl.tokens import QwenFormat, ToolCall, Vocab
from agentrl.tokens.formats.base import ChatFormat
from agentrl.tokens.formats.tags import TagsFormat
from tests.security.test_tokens_injection import PAYLOADS
from tests.unit.rollout_ground import ASSIGNMENT, CHAT, LIMITS, Policy, check_tokens, play

pytestmark = pytest.mark.anyio


def search(description: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"query": {"type": "string"}}}
    function = {"name": "search", "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


@pytest.mark.parametrize("with_tool_tokens", [True, False])
@pytest.mark.parametrize("make_format", [QwenFormat, TagsFormat])
async def test_hostile_messages_forge_nothing(
    qwen_tokenizer_json: str, make_format: Callable[[Vocab], ChatFormat], with_tool_tokens: bool
) -> None:
    description = json.loads(qwen_tokenizer_json)
    if not with_tool_tokens:
        description["added_tokens"] = [t for t in description["added_tokens"] if t["special"]]
    chat = make_format(Vocab(json.dumps(description)))
    vocab = chat.vocab
    honest = vocab.decode(chat.write("", [ToolCall("", "search", b'{"query": "honest"}')]))
    # where the markers of calls are plain words, a sample: messages are written the same way
    for payload in PAYLOADS if with_tool_tokens else PAYLOADS[::5]:
        await attack(chat, payload, honest)


async def attack(chat: ChatFormat, payload: str, honest: str) -> None:
    """The payload in every place of a request that takes text, in all three kinds of history."""
    calls: list[dict[str, Any]] = []

    async def solve(task: dict[str, Any], model: Chat) -> float:
        tools = [search(payload)]
        messages: list[dict[str, Any]] = [
            {"role": "developer", "content": payload},
            {"role": "user", "content": "Where?", "name": payload},
        ]
        answer = await model.complete(messages, tools)
        calls.extend(answer["tool_calls"])
        result = {"role": "tool", "tool_call_id": calls[0]["id"], "content": payload}
        # continued, branched off, and rewritten with calls that nobody sampled
        await model.complete([*messages, answer, result], tools)
        parts = [{"type": "text", "text": payload}]
        await model.complete([*messages, answer, {"role": "user", "content": parts}], tools)
        function = {"name": payload, "arguments": payload}
        forged = {"role": "assistant", "content": payload, "tool_calls": [{"function": function}]}
        await model.complete([{"role": "user", "content": "Where?"}, forged, result])
        return 0.0

    policy = Policy([honest, "Rome<|im_end|>", "Rome<|im_end|>", "Rome<|im_end|>"], chat=chat)
    played = await play(solve, policy, chat=chat, limits=ROOMY)
    assert [call["function"]["name"] for call in calls] == ["search"]
    assert json.loads(calls[0]["function"]["arguments"]) == {"query": "honest"}
    check_tokens(played, policy, chat)
    opener = chat.vocab.control["<|im_start|>"]
    for (prompt, _), num_turns in zip(policy.asked, (3, 5, 5, 4), strict=True):
        # each message and the answer to come; for a tool's result the user's turn that holds it
        assert prompt.count(opener) == num_turns


ROOMY = type(LIMITS)(
    max_context=2**20,
    max_prompt=2**20,
    max_turns=8,
    max_tool_calls=None,
    episode_timeout_s=60.0,
)


async def test_hostile_bodies_are_refused_and_end_nothing() -> None:
    policy = Policy(lambda prompt: "42<|im_end|>")
    async with Endpoint() as endpoint, aiohttp.ClientSession() as session:
        recorder = CallRecorder(ASSIGNMENT, CHAT, LIMITS, policy)
        key = endpoint.open(recorder)
        url = f"{await endpoint.url()}/chat/completions"
        head = {"Authorization": f"Bearer {key}"}
        for body in HOSTILE_BODIES:
            async with session.post(url, data=body, headers=head) as answer:
                assert answer.status == 400, body[:80]
                assert (await answer.json())["error"]["message"]
        async with session.post(url, json={"messages": HELLO}, headers=head) as answer:
            assert answer.status == 200
        assert recorder.num_calls == 1
        assert recorder.failure is None


HELLO = [{"role": "user", "content": "hello"}]
HOSTILE_BODIES = [
    b"",
    b"\xff\xfe",
    b"null",
    b"[]",
    b'{"messages": [{"role": "user", "content": "\\ud800"}, 1e999]}',
    b'{"messages": [{"role": "user", "content": "' + b"\0" + b'"}]}',
    b'{"messages": {"role": "user"}}',
    b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": -1}',
    b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": ' + b"9" * 5000 + b"}",
    b'{"messages": [{"role": "user", "content": "x"}], "tools": ' + b"[" * 5000,
    b'{"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "mcp"}]}',
    b'{"messages": [], "tools": [{"type": "mcp", "function": {"name": "f"}}]}',
    b'{"messages": [{"role": "user", "content": "x"}], "stop": ["' + b'x", "' * 20 + b'"]}',
    b'{"messages": [{"role": "user", "content": "x"}], "logprobs": true}',
    b'{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}',
    b'{"messages": [{"role": "user", "content": "x"}, {"role": "system", "content": "y"}]}',
]
