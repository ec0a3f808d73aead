"""Environments: the `Env` that users write, its registry, and task sources."""

from agentrl.envs.env import Env, ServiceSpec
from agentrl.envs.messages import AssistantTurn, Message, Step, ToolCall
from agentrl.envs.registry import known_envs, load_env, register
from agentrl.envs.sources import RowSource

__all__ = [
    "AssistantTurn",
    "Env",
    "Message",
    "RowSource",
    "ServiceSpec",
    "Step",
    "ToolCall",
    "known_envs",
    "load_env",
    "register",
]
