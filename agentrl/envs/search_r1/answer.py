"""What a final answer is worth: exact match, F1 of its words, and whether it is well formed.

Normalization and F1 as in SQuAD's evaluation (Rajpurkar et al. 2016), which Search-R1 uses too:
lower case, no punctuation, no English articles, single spaces. Where a question has several right
answers the best match counts. An empty answer matches nothing.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence

from agentrl.envs.grading.enclosed import last_enclosed

__all__ = ["exact_match", "f1", "final_answer", "is_well_formed", "normalize"]

_TAG = re.compile(r"</?answer>")
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def final_answer(text: str) -> str | None:
    """What the last complete `<answer> .. </answer>` of `text` holds, or None."""
    found = last_enclosed(text, "<answer>", "</answer>")
    return None if found is None else found.strip()


def normalize(answer: str) -> str:
    """The form in which answers are compared."""
    return " ".join(_ARTICLE.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def exact_match(text: str, *golds: str) -> bool:
    """Whether the final answer of `text` is one of `golds`. An empty answer never is."""
    answer = normalize(final_answer(text) or "")
    return answer != "" and answer in map(normalize, golds)


def f1(text: str, *golds: str) -> float:
    """Harmonic mean of precision and recall of the final answer's words, 0..1: the best of
    `golds`."""
    words = normalize(final_answer(text) or "").split()
    return max((_overlap(words, normalize(gold).split()) for gold in golds), default=0.0)


def is_well_formed(text: str) -> bool:
    """Whether `text` ends with an answer that says something, and has no other tag of answers."""
    text = text.rstrip()
    return (
        _TAG.findall(text) == ["<answer>", "</answer>"]
        and text.endswith("</answer>")
        and bool(final_answer(text))
    )


def _overlap(words: Sequence[str], gold: Sequence[str]) -> float:
    shared = (Counter(words) & Counter(gold)).total()
    return 2 * shared / (len(words) + len(gold)) if shared else 0.0
