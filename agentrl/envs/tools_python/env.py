"""`tools-python`: solve a problem with numbers, by thought, a calculator, or a program.

The turn that calls nothing ends the episode; the reward is 1 when the number in its last
`<answer> .. </answer>` is the right one, exactly. Only the turn's own text is read.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from agentrl.envs.env import Env
from agentrl.envs.messages import Message
from agentrl.envs.registry import register
from agentrl.envs.tools_python.answer import final_number, read_number
from agentrl.envs.tools_python.problems import ProblemSource, chosen, eval_tasks
from agentrl.errors import EnvError
from agentrl.tools.calculator import calculator as calculator_tool
from agentrl.tools.python import python as python_tool
from agentrl.tools.sandbox import open_sandbox
from agentrl.types import Task, TaskSource

__all__ = ["ToolsPythonEnv", "asked"]

_HOW = "End with the number, exactly, as in <answer> 42 </answer> or <answer> -7/3 </answer>."


@register("tools-python")
class ToolsPythonEnv(Env):
    """One problem. It needs a sandbox: see docs/sandbox.md.

    `--env-args` may set `kinds`, a list: which kinds of its own problems are played.
    """

    reward_reads_text_only = True
    calculator = calculator_tool
    python = python_tool

    def __init__(self, *, kinds: Sequence[str] | None = None) -> None:
        super().__init__()
        chosen(kinds)
        self._right = Fraction(0)

    @classmethod
    def train_tasks(cls, args: Mapping[str, Any], *, seed: int) -> TaskSource:
        """Endless problems, none of which evaluation knows."""
        return ProblemSource(seed, chosen(args.get("kinds")))

    @classmethod
    def eval_tasks(cls, args: Mapping[str, Any]) -> dict[str, list[Task]]:
        """Problems that no training task is."""
        return {"heldout": eval_tasks(chosen(args.get("kinds")))}

    async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
        if missing := {"question", "answer"} - task.keys():
            raise EnvError(f"the task lacks {sorted(missing)}; its keys are {sorted(task)}")
        right = read_number(str(task["answer"]))
        if right is None:
            raise EnvError(f"the answer {task['answer']!r:.80} is no number such as 42, 0.5 or 7/3")
        self._right = right
        # Before the first call: a run without a sandbox is to be refused before it starts.
        await open_sandbox(allow_unsafe=self.allow_unsafe_sandbox)
        return [Message.user(asked(task["question"]))]

    async def score(self, text: str) -> float:
        return float(final_number(text) == self._right)


def asked(question: str) -> str:
    """What the model is asked: the question, and how to answer."""
    return f"{question} {_HOW}"
