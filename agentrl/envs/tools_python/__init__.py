"""`tools-python`: problems with numbers, a calculator and Python in a sandbox."""

from agentrl.envs.tools_python.env import ToolsPythonEnv
from agentrl.envs.tools_python.problems import ProblemSource, eval_tasks

__all__ = ["ProblemSource", "ToolsPythonEnv", "eval_tasks"]
