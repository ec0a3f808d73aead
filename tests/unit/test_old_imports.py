"""What the pages and examples of the first public text (commit 0f3cc77) import goes on working.

`LINES` are their import lines and the paths that they name, as they stood there. A name that has
moved since warns; it does not break.
"""

import importlib
import re
import warnings

import pytest

LINES = """
from agentrl import AssistantTurn, Env, Message, Step
from agentrl import AssistantTurn, Step, ToolCall
from agentrl import Env, Message, Meta, ToolError, tool
from agentrl import Env, Message, Task, ToolError, tool
from agentrl import Env, Message, register
from agentrl import Env, Message, tool
from agentrl import ToolError
from agentrl import rollout
from agentrl import tool
from agentrl.actors.group_scoring import check_reward_nonzero_std
from agentrl.envs.adapters.gymnasium import GymnasiumEnv
from agentrl.errors import InfrastructureError
from agentrl.tokens.chat import ParsedTurn, ToolCall
from agentrl.tokens.formats.chatml import ChatML
from agentrl.tokens.spans import Author, Piece
from agentrl.tools.calculator import calculator
from agentrl.tools.fetch import fetch
from agentrl.tools.mcp import McpServer
from agentrl.tools.python import python
from agentrl.tools.sandbox import Limits, Result
from agentrl.wire.peer import BufferPeer
""".strip().splitlines()
#: Those of which a name has moved.
MOVED = {"from agentrl.tools.sandbox import Limits, Result": "SandboxLimits"}


@pytest.mark.parametrize("line", LINES)
def test_an_import_of_the_first_pages_works_or_warns(line: str) -> None:
    found = re.fullmatch(r"from ([\w.]+) import (.+)", line)
    assert found
    module = importlib.import_module(found[1])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for name in found[2].split(", "):
            assert getattr(module, name)
    said = [str(one.message) for one in told if one.category is DeprecationWarning]
    assert bool(said) == (line in MOVED)
    assert MOVED.get(line, "") in "".join(said)
