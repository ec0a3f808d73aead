r"""`math`: the last `\boxed{...}` is the label, by spelling or by algebra."""

from typing import Any

from agentrl.envs.grading.boxed import boxed, boxed_answer
from agentrl.envs.grading.cell import in_a_cell
from agentrl.envs.grading.labels import answers
from agentrl.envs.grading.mathematics import is_right
from agentrl.envs.rewards.base import ships

__all__ = ["math"]


@ships(reads=boxed_answer)
@in_a_cell()
def math(text: str, label: Any, task: dict[str, Any], /) -> float:
    r"""1 when the last box of the text means what the label, or the label's own box, means; of a
    list of labels any."""
    del task
    given = boxed(text)
    return float(any(is_right(given, answer) for answer in answers(label)))
