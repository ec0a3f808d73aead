"""`gpqa`: the letter of a multiple choice, or its words."""

import re
import string
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from agentrl.envs.grading.cell import RuleError, in_a_cell
from agentrl.envs.rewards.base import ships

__all__ = ["gpqa"]

_LETTERS = list(string.ascii_uppercase[:10])
#: How an answer names its letter, the first that matches.
NAMED = [
    re.compile(pattern, re.I)
    for pattern in (
        r"(?:answer|option|choice)\s*(?:(?:is|:)\s*)?([A-Z])",
        r"([A-Z])\s*is\s*(?:the\s*)?correct",
        r"final\s*(?:answer|option)\s*(?:(?:is|:)\s*)?([A-Z])",
    )
]
_ALONE = re.compile(r"\b([A-Z])\b")


@in_a_cell(otherwise="")
def _letter(text: str, label: Any, task: dict[str, Any], /) -> str:
    """The letter that the text names, or nothing."""
    del label
    metadata = task.get("metadata")
    known: Mapping[str, Any] = metadata if isinstance(metadata, Mapping) else {}
    letters = _letters(known.get("valid_letters"), _listed(known.get("choices")))
    return _named(text.rpartition("</think>")[2], letters) or ""


class _Right(NamedTuple):
    """What a row says of its choices. `letter`: the right one, as far as the row says it;
    `targets`: what is right in words."""

    letters: Sequence[str]
    letter: str | None
    targets: list[str]


def check_row(label: Any, task: Mapping[str, Any]) -> None:
    """Raises RuleError for a row of which no answer is right, or whose choices are no list."""
    letters, letter, targets = _read(label, task)
    if letter is None and not any(map(_plain, targets)):
        raise RuleError(
            "`gpqa` finds no right answer in the row: give it a label (a letter, a place among the "
            "choices from 0, or the words of one), or `correct_letter` in its metadata"
        )
    told = letter or _lone_letter(label)
    if told is not None and told not in letters:
        raise RuleError(
            f"the right letter of `gpqa` is {told}, and those of the row are {', '.join(letters)}"
        )


@ships(needs_label=False, reads=_letter, check_row=check_row)
@in_a_cell()
def gpqa(text: str, label: Any, task: dict[str, Any], /) -> float:
    """1 when the letter that the answer names is the right one, or where a letter is lacking, when
    the right choice stands in the text.

    The right one is `correct_letter` of the row's `metadata`, or the label: a letter, a place among
    the choices, or the words of one. `choices`, `valid_letters`, `correct_answer` and `answer_text`
    of the metadata are read too.

    Raises RuleError for choices or letters that are no list.
    """
    letters, right, targets = _read(label, task)
    said = text.rpartition("</think>")[2]
    letter = _named(said, letters)
    if letter and right:
        return float(letter == right)
    plain = _plain(said)
    if any(target in plain for target in map(_plain, targets) if target):
        return 1.0
    words = _words(label)
    return float(bool(letter and not right and words) and letter == words.upper())


def _read(label: Any, task: Mapping[str, Any]) -> _Right:
    metadata = task.get("metadata")
    known: Mapping[str, Any] = metadata if isinstance(metadata, Mapping) else {}
    choices = _listed(known.get("choices"))
    letters = _letters(known.get("valid_letters"), choices)
    words = _words(label)
    right = _right(known.get("correct_letter"), label, words, choices, letters)
    targets = [known.get("correct_answer"), known.get("answer_text"), words]
    if right is None and words and (place := _place(words, choices, letters)) is not None:
        right = letters[place]
        targets[0] = targets[0] if "correct_answer" in known else choices[place]
    if right is not None and right in letters and letters.index(right) < len(choices):
        targets.append(choices[letters.index(right)])
    return _Right(letters, right, [str(target) for target in targets if target])


def _words(label: Any) -> str:
    return label.strip() if isinstance(label, str) else ""


def _lone_letter(label: Any) -> str | None:
    """A label that can only be a letter."""
    words = _words(label).upper()
    return words if len(words) == 1 and words.isalpha() else None


def _listed(choices: Any) -> list[Any]:
    if isinstance(choices, Mapping):
        return list(choices.values())
    return _list_of("choices", choices) if choices is not None else []


def _letters(valid: Any, choices: Sequence[Any]) -> list[str]:
    if valid:
        return [str(letter).upper() for letter in _list_of("valid_letters", valid)]
    return list(string.ascii_uppercase[: len(choices)]) if choices else _LETTERS


def _list_of(key: str, value: Any) -> list[Any]:
    if not isinstance(value, Sequence):
        raise RuleError(f"`{key}` of the row's metadata is {value!r:.80}, and `gpqa` wants a list")
    return list(value)


def _right(
    told: Any, label: Any, words: str, choices: Sequence[Any], letters: Sequence[str]
) -> str | None:
    """The right letter, as far as metadata or label say it."""
    right = told.strip().upper() if isinstance(told, str) else None
    if isinstance(label, (int, float)):
        place = int(label)
        return letters[place] if 0 <= place < len(letters) else right or None
    if len(words) == 1 and words.upper() in letters and not right:
        return words.upper()
    return right or None


def _place(words: str, choices: Sequence[Any], letters: Sequence[str]) -> int | None:
    wanted = _plain(words)
    places = (n for n, choice in enumerate(choices) if _plain(str(choice)) == wanted)
    place = next(places, None)
    return place if place is not None and place < len(letters) else None


def _named(said: str, letters: Sequence[str]) -> str | None:
    for pattern in NAMED:
        found = pattern.search(said)
        if found and found[1].upper() in letters:
            return found[1].upper()
    return next((each for each in reversed(_ALONE.findall(said)) if each in letters), None)


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", " ", text.lower()).strip()
