r"""One spelling for answers of the MATH data: `\tfrac12`, `\frac{1}{2}`, `1/2` and `0.5` are one.

The rule is that of D. Hendrycks' checker for https://arxiv.org/abs/2103.03874, which slime's
rewards compare by first.
"""

import re

__all__ = ["same"]

_ENCLOSED = re.compile(r"^\\text\{(.+?)\}$")
_RATIO = re.compile(r"(-?[1-9][0-9]{0,4000}|0)/(-?[1-9][0-9]{0,4000}|0)")
#: What is taken out or written otherwise, in this order, before the shape of the answer is read.
_FIRST = (
    *(("\n", ""), ("\\!", ""), ("\\\\", "\\"), ("tfrac", "frac"), ("dfrac", "frac")),
    *(("\\left", ""), ("\\right", ""), ("^{\\circ}", ""), ("^\\circ", ""), ("\\$", "")),
)


def same(one: str, other: str) -> bool:
    """Whether two answers are written alike once both are in one spelling."""
    return _spelt(one) == _spelt(other)


def _spelt(answer: str) -> str:
    answer = answer.strip()
    if enclosed := _ENCLOSED.search(answer):
        answer = enclosed[1].strip()
    spelt = _rewritten(answer)
    return answer if spelt is None else spelt


def _rewritten(text: str) -> str | None:
    r"""None: it ends in a bare `\frac` or `\sqrt`, or has two units, and stays as it was."""
    for old, new in _FIRST:
        text = text.replace(old, new)
    if "\\text{ " in text:  # a unit
        if text.count("\\text{ ") > 1:
            return None
        text = text.partition("\\text{ ")[0]
    text = text.replace("\\%", "").replace(" .", " 0.").replace("{.", "{0.")
    if not text:
        return text
    text = f"0{text}" if text.startswith(".") else text
    if text.count("=") == 1 and text.index("=") <= 2:
        text = text.partition("=")[2]
    rooted = _roots(text)
    if rooted is None:
        return None
    fractioned = _fractions(rooted.replace(" ", ""))
    if fractioned is None:
        return None
    text = "\\frac{1}{2}" if fractioned == "0.5" else fractioned
    if ratio := _RATIO.fullmatch(text):
        return f"\\frac{{{ratio[1]}}}{{{ratio[2]}}}"
    return text


def _roots(text: str) -> str | None:
    r"""`\sqrt3` as `\sqrt{3}`."""
    first, *rest = text.split("\\sqrt")
    for part in rest:
        if not part:
            return None
        first += "\\sqrt" + (part if part[0] == "{" else f"{{{part[0]}}}{part[1:]}")
    return first


def _fractions(text: str) -> str | None:
    r"""`\frac12` and `\frac1{2}` as `\frac{1}{2}`; all stays where one has no two parts."""
    first, *rest = text.split("\\frac")
    for part in rest:
        if not part:
            return None
        if part[0] == "{":
            first += f"\\frac{part}"
        elif len(part) < 2:
            return text
        elif part[1] == "{":
            first += f"\\frac{{{part[0]}}}{part[1:]}"
        else:
            first += f"\\frac{{{part[0]}}}{{{part[1]}}}{part[2:]}"
    return first
