r"""`deepscaler`: as `math`, of an answer behind a finished thought."""

from typing import Any

from agentrl.envs.grading.boxed import boxed, boxed_answer
from agentrl.envs.grading.cell import in_a_cell
from agentrl.envs.grading.labels import answers
from agentrl.envs.grading.mathematics import is_right
from agentrl.envs.rewards.base import ships

__all__ = ["deepscaler"]

_THOUGHT_ENDS, _RESPONSE = "</think>", "###Response"


@ships(reads=boxed_answer)
@in_a_cell()
def deepscaler(text: str, label: Any, task: dict[str, Any], /) -> float:
    r"""1 when what follows the last `</think>`, or what stands after the first `###Response`, has
    the label, or one of a list, in its last box; 0 for a text with neither mark."""
    del task
    if _THOUGHT_ENDS in text:
        said = text.rpartition(_THOUGHT_ENDS)[2]
    elif _RESPONSE in text:
        said = text.split(_RESPONSE)[1]
    else:
        return 0.0
    given = boxed(said)
    return float(any(is_right(given, answer) for answer in answers(label)))
