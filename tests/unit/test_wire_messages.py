"""The drawing at the top of `agentrl/wire/messages.py` is that of the union."""

import re
from collections import defaultdict
from typing import get_args

from agentrl.wire import messages
from agentrl.wire.messages import Message

_ROLES = ("worker", "learner", "driver", "all")
_WORD = re.compile(r"\b(?:worker|learner|driver|all|sends?|gets?|[A-Z]\w+)\b")


def drawn() -> dict[tuple[str, str], set[str]]:
    """Names of messages by role and `send` or `get`."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    role, way = "", ""
    for word in _WORD.findall(str(messages.__doc__).partition("\n\n    ")[2]):
        if word in _ROLES:
            role = word
        elif word[0].islower():
            way = word.removesuffix("s")
        else:
            found[role, way].add(word)
    return found


def test_the_drawing_has_each_message_at_its_sender() -> None:
    sent: dict[str, set[str]] = defaultdict(set)
    for kind in get_args(Message):
        sent[kind.sender].add(kind.__name__)
    of_any = sent.pop("any")
    by_buffer = sent.pop("buffer")
    table = drawn()
    for role, names in sent.items():
        assert table[role, "send"] - of_any == names
        assert "Hello" in table[role, "send"]
    assert table["all", "send"] | {"Hello"} == of_any
    passed_on = {"Republish"}  # the driver's, which the learner gets
    got = set().union(*(table[role, "get"] for role in _ROLES))
    assert got == by_buffer | passed_on
