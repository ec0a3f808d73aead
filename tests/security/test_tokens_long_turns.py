"""Turns that a policy might sample to hold up its worker: each is read in linear time.

The turns are made of what a format itself writes of a call, cut at its tags, and filled in place of
a part or beside it: with blanks, braces, that part again and again, other tags, halves of calls. So
a format that ships is covered by being there.
"""

import json
import re
import time
from collections.abc import Iterator
from functools import cache
from itertools import pairwise

import pytest

from agentrl.shipped import CHAT_FORMATS
from agentrl.tokens import Message, ToolCall
from agentrl.tokens.formats.base import ChatFormat
from tests.parity.test_tokens_own_templates import KEEPING, learnt
from tests.property.test_formats_properties import SCHEMAS, made
from tests.slices import of_the_day

#: Repetitions of a filling, four times as many each time.
SIZES = (400, 1_600, 6_400, 25_600, 102_400)
#: How many times as long the fourfold may take: in linear time four times, in quadratic sixteen.
MOST = 9
#: CPU seconds of a measurement that is too short to say anything, and of one that is long enough.
SHORT_S, LONG_S = 0.004, 0.03
OWN = [f"own-{name}" for name in KEEPING]
TAG = re.compile(r"(<[^<>]*>|\[/?[A-Z_]+\])")

Body = tuple[str, str, str]


@cache
def chat_of(name: str) -> ChatFormat:
    if name not in OWN:
        return made(name)
    return learnt(name.removeprefix("own-"), json.dumps(KEEPING[name.removeprefix("own-")]))


def bodies(chat: ChatFormat) -> tuple[list[Body], list[Body]]:
    """What stands before a filling, the filling once, and what stands after it: those of every day
    and all others."""
    call = ToolCall("", "search", b'{"query": "Rome"}')
    written = chat.vocab.decode(chat.write("", [call])[:-1])
    parts = [part for part in TAG.split(written) if part]
    starts = ["".join(parts[:at]) for at in range(len(parts) + 1)]
    tags = {part for part in parts if TAG.fullmatch(part)}
    halves = {tag[:-1] for tag in tags} | {*starts[1:]} | {written[len(s) :] for s in starts[:-1]}
    others = {"\n", "}", '"', "`", '{"a":', *tags, *halves}
    always, sometimes = list[Body](), list[Body]()
    for before, part in zip(starts, [*parts, ""], strict=True):
        rest = written[len(before) :]
        always += [(before, " ", f".{rest}"), (before, "{", rest)]
        for after in dict.fromkeys((rest, rest[len(part) :], parts[-1], "")):
            always += [(before, filling, after) for filling in (" ", part) if filling]
            sometimes += [(before, filling, after) for filling in sorted(others - {part})]
    return always, sometimes


def work_s(chat: ChatFormat, body: Body, size: int) -> float:
    """CPU seconds in which a turn is read and answered."""
    before, filling, after = map(chat.vocab.encode_trusted, body)
    sampled = [*before, *filling * size, *after]
    answer = [Message.tool("Rome.", "call_0_0")]
    begun = time.thread_time()
    chat.parse(sampled, tools=SCHEMAS)
    chat.observe(answer, sampled)
    chat.remembered(answer, sampled)
    return time.thread_time() - begun


def too_long(chat: ChatFormat, body: Body) -> Iterator[str]:
    """What took longer than in proportion to its length. It is measured again before it is said:
    what else the machine does costs a little CPU time too."""
    less = work_s(chat, body, SIZES[0])
    for small, large in pairwise(SIZES):
        more = work_s(chat, body, large)
        for _ in range(2):
            if more > MOST * max(less, SHORT_S):
                less = max(less, work_s(chat, body, small))
                more = min(more, work_s(chat, body, large))
        if more > MOST * max(less, SHORT_S):
            yield f"{body}: {more:.3f} s for {large} of the filling, {less:.3f} s for {small}"
            return
        if less > SHORT_S and more > LONG_S:
            return
        less = more


@pytest.mark.parametrize("name", [*CHAT_FORMATS.places, *of_the_day(OWN, 3)])
def test_a_turn_is_read_in_time_in_proportion_to_its_length(name: str) -> None:
    chat = chat_of(name)
    always, sometimes = bodies(chat)
    chosen = [*always, *of_the_day(sometimes, 12)]
    slow = (said for body in chosen for said in too_long(chat, body))
    assert next(slow, "") == ""
