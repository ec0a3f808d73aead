"""agentrl trains tool-using language-model agents by reinforcement learning, asynchronously.

The names here are what an environment needs. Each is imported when first used, so that
`import agentrl` stays fast.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from msgspec import Meta

    from agentrl.envs.env import Env, ServiceSpec
    from agentrl.envs.messages import AssistantTurn, Message, Step, ToolCall
    from agentrl.envs.registry import load_env, register
    from agentrl.envs.rollout import Chat, Rollout, rollout
    from agentrl.errors import ChatError
    from agentrl.tools.tool import ToolError, tool
    from agentrl.types import Task

__all__ = [
    "AssistantTurn",
    "Chat",
    "ChatError",
    "Env",
    "Message",
    "Meta",
    "Rollout",
    "ServiceSpec",
    "Step",
    "Task",
    "ToolCall",
    "ToolError",
    "load_env",
    "register",
    "rollout",
    "tool",
]

_HOMES = {
    "AssistantTurn": "agentrl.envs.messages",
    "Chat": "agentrl.envs.rollout",
    "ChatError": "agentrl.errors",
    "Env": "agentrl.envs.env",
    "Message": "agentrl.tokens.chat",
    "Meta": "msgspec",
    "Rollout": "agentrl.envs.rollout",
    "ServiceSpec": "agentrl.envs.env",
    "Step": "agentrl.envs.messages",
    "Task": "agentrl.types",
    "ToolCall": "agentrl.tokens.chat",
    "ToolError": "agentrl.tools.tool",
    "load_env": "agentrl.envs.registry",
    "register": "agentrl.envs.registry",
    "rollout": "agentrl.envs.rollout",
    "tool": "agentrl.tools.tool",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'agentrl' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
