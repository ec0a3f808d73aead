"""Typed tools for the model: declare with `@tool`, run with `run_calls`."""

from agentrl.tools.run import ToolResult, run_call, run_calls
from agentrl.tools.tool import Tool, ToolError, ToolSpec, tool

__all__ = ["Tool", "ToolError", "ToolResult", "ToolSpec", "run_call", "run_calls", "tool"]
