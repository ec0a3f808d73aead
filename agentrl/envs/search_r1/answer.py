"""The reward of the default job: exact match of the final answer.

Normalisation as in SQuAD's evaluation (Rajpurkar et al. 2016), which Search-R1 uses too: lower
case, no punctuation, no English articles, single spaces.
"""

import re
import string

__all__ = ["exact_match", "final_answer", "normalise"]

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def final_answer(text: str) -> str | None:
    """What the last complete `<answer> .. </answer>` of `text` holds, or None."""
    found = _ANSWER.findall(text)
    return found[-1].strip() if found else None


def normalise(answer: str) -> str:
    """The form in which answers are compared."""
    return " ".join(_ARTICLE.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def exact_match(text: str, gold: str) -> bool:
    """Whether the final answer of `text` is `gold`. An empty answer never is."""
    answer = final_answer(text)
    return answer is not None and normalise(answer) == normalise(gold) != ""
