r"""`dapo`: the integer after the last `Answer:` is the label, or the text is worth -1."""

import re
from decimal import Decimal, InvalidOperation
from typing import Any

from agentrl.envs.grading.cell import RuleError, in_a_cell
from agentrl.envs.grading.labels import answers
from agentrl.envs.rewards.base import ships

__all__ = ["dapo", "graded"]

#: Characters of the end of a text that are read.
_TAIL = 300
#: No label has as many digits; Python writes no integer with more than 4,300.
_MAX_DIGITS = 4000
_ANSWER = re.compile(r"Answer\s*:\s*([^\n]+)", re.I)
_REWRITTEN = (
    *(("an ", ""), ("a ", ""), (".$", "$"), ("\\$", ""), ("\\ ", ""), (" ", "")),
    *(("mbox", "text"), (",\\text{and}", ","), ("\\text{and}", ","), ("\\text{m}", "\\text{}")),
)
#: Units and marks that say nothing, in the order in which they go.
_LEFT_OUT = (
    *("square", "ways", "integers", "dollars", "mph", "inches", "hours", "km", "units"),
    *("\\ldots", "sue", "points", "feet", "minutes", "digits", "cents", "degrees", "cm", "gm"),
    *("pounds", "meters", "meals", "edges", "students", "childrentickets", "multiples"),
    *("\\text{s}", "\\text{.}", "\\text{\ns}", "\\text{}^2", "\\text{}^3", "\\text{\n}"),
    *("\\text{}", "\\mathrm{th}", "^\\circ", "^{\\circ}", "\\;", ",\\!", "{,}", '"', "\\dots"),
    *("<|im_end|>", "<|endoftext|>"),
)
#: What is kept of a macro, or of an answer in dollars.
_SHAPES = (
    (re.compile(r"(.*?)(\$)(.*?)(\$)(.*)"), r"$\3$"),
    *((re.compile(rf"\\{name}\{{(.*?)\}}"), r"\1") for name in ("text", "textbf", "overline")),
    (re.compile(r"\\boxed\{(.*)\}"), r"\1"),
    (re.compile(r"frac([^{])(.)"), r"frac{\1}{\2}"),
    (re.compile(r"sqrt([^{])"), r"sqrt{\1}"),
)


@ships(keys=("score", "acc", "pred"))
@in_a_cell(otherwise={"score": -1.0, "acc": False, "pred": "[INVALID]"})
def dapo(text: str, label: Any, task: dict[str, Any], /) -> dict[str, Any]:
    """score: 1 when the last `Answer:` of the last 300 characters is the label, else -1; acc:
    whether it is; pred: what was read. The label is an integer, or a list of which any is right.

    Raises RuleError for a label that is no integer.
    """
    del task
    return graded(text, label)


def graded(text: str, label: Any) -> dict[str, Any]:
    """The same in this process: the end of a text is short, and nothing here takes long."""
    found = _ANSWER.findall(text[-_TAIL:])
    given = _spelt(found[-1] if found else "[INVALID]")
    is_right = given in [_required(answer) for answer in answers(label)]
    return {"score": 1.0 if is_right else -1.0, "acc": is_right, "pred": given}


def _required(label: str) -> str:
    """The digits of a label. Raises RuleError for one that is no integer."""
    whole = _whole(_spelt(label))
    if whole is None:
        raise RuleError(f"the label {label!r:.80} is no integer, which `dapo` asks for")
    return whole


def _whole(number: str) -> str | None:
    """The digits of an integer, however it is written; None for another number, or a huge one."""
    try:
        value = Decimal(number)
    except InvalidOperation:
        return None
    if not value.is_finite() or value.adjusted() >= _MAX_DIGITS:
        return None
    return str(int(value)) if value == value.to_integral_value() else None


def _spelt(answer: str) -> str:
    """The normal form of Lewkowycz et al., https://arxiv.org/abs/2206.14858, appendix D."""
    answer = answer.rpartition("=")[2]
    for old, new in (*_REWRITTEN, *((unit, "") for unit in _LEFT_OUT)):
        answer = answer.replace(old, new)
    for pattern, kept in _SHAPES:
        answer = pattern.sub(kept, answer)
    answer = answer.replace("$", "")
    digits = answer.replace(",", "")
    return (digits if digits.isdigit() else answer).strip()
