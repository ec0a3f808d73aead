"""`f1`: how many words text and label share."""

import re
import string
from collections import Counter
from typing import Any

from agentrl.envs.grading.cell import in_a_cell
from agentrl.envs.grading.labels import answers
from agentrl.envs.rewards.base import ships

__all__ = ["f1"]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
#: Answers that share nothing with another one.
_VERDICTS = ("yes", "no", "noanswer")


@ships()
@in_a_cell()
def f1(text: str, label: Any, task: dict[str, Any], /) -> float:
    """The harmonic mean of precision and recall over the words of both, without case, punctuation
    and articles (https://arxiv.org/abs/1606.05250, section 6.1); of a list of labels the best."""
    del task
    given = _words(text)
    return max(_shared(given, _words(answer)) for answer in answers(label))


def _shared(given: list[str], wanted: list[str]) -> float:
    if given != wanted and any(" ".join(words) in _VERDICTS for words in (given, wanted)):
        return 0.0
    num_shared = sum((Counter(given) & Counter(wanted)).values())
    if not num_shared:
        return 0.0
    precision, recall = num_shared / len(given), num_shared / len(wanted)
    return (2 * precision * recall) / (precision + recall)


def _words(text: str) -> list[str]:
    return _ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split()
