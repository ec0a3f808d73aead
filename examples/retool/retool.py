"""ReTool: think, compute with a Python program in a sandbox, and answer.

The method is that of https://arxiv.org/abs/2504.11536.
"""

from agentrl import AssistantTurn, Step
from agentrl.envs.single_turn import SingleTurnEnv
from agentrl.tools.python import python


class Retool(SingleTurnEnv):
    """A row of `prompt` and `label`, and a Python interpreter.

    A right answer, by the rule of the DAPO data (`Answer: 34`), is worth 1. A wrong one is worth
    `bonus` where a program was run for it, so that a model finds the tool before it finds answers.
    An evaluation counts right answers alone.
    """

    python = python
    reward_reads_text_only = False  # the bonus looks at what was called

    def __init__(self, *, bonus: float = 0.1) -> None:
        super().__init__(input_key="prompt", label_key="label", rm_type="dapo", reward_key="acc")
        self._bonus = bonus
        self._has_computed = False

    async def step(self, turn: AssistantTurn) -> Step:
        self._has_computed |= any(call.name == "python" for call in turn.tool_calls)
        return await super().step(turn)

    async def score(self, text: str) -> float:
        right = await super().score(text)
        if right or self.is_evaluation or not self._has_computed:
            return right
        return self._bonus
