r"""`compute_score`: what an answer to a problem whose answer is an integer is worth."""

from typing import Any

from agentrl.envs.grading.boxed import boxed
from agentrl.envs.rewards.dapo import graded

__all__ = ["compute_score"]

#: Characters of the end of a text in which its box is looked for.
_TAIL = 100


def compute_score(
    solution_str: str, ground_truth: str, strict_box_verify: bool = False
) -> dict[str, Any]:
    r"""score: 1 for the right answer, else -1; acc: whether it is right; pred: what was read. That
    is what `dapo` reads, or under `strict_box_verify` the last `\boxed{...}`, letter by letter.

    Raises RuleError for a label that is no integer, where `dapo` reads.
    """
    if not strict_box_verify:
        return graded(solution_str, ground_truth)
    given = boxed(solution_str[-_TAIL:])
    is_right = given == ground_truth
    return {"score": 1.0 if is_right else -1.0, "acc": is_right, "pred": given}
