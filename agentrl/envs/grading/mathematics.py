"""Whether an answer in mathematics is the label: by spelling, or by algebra."""

from agentrl.envs.grading.boxed import boxed
from agentrl.envs.grading.expressions import equal
from agentrl.envs.grading.plain import same

__all__ = ["is_right"]


def is_right(answer: str | None, label: str) -> bool:
    r"""Whether they mean the same. A label with a `\boxed{...}` is what stands in it; one without
    text, or with a box that is not closed, is nobody's answer."""
    wanted = boxed(label) if "\\boxed" in label else label
    if answer is None or not label or wanted is None:
        return False
    return same(answer, wanted) or equal(answer, wanted)
