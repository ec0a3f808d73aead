"""`ifbench`: whether a text keeps every instruction of its row."""

from collections.abc import Mapping
from typing import Any

from agentrl.envs.grading.cell import RuleError, in_a_cell
from agentrl.envs.grading.instructions import asked, classic, newer, stop_words
from agentrl.envs.grading.instructions.checks import arguments, is_kept
from agentrl.envs.rewards.base import ships

__all__ = ["FAMILIES", "ifbench"]

FAMILIES = (asked, classic, newer, stop_words)


def check_row(label: Any, task: Mapping[str, Any]) -> None:
    """Raises RuleError for a row without instructions, or with one that has no check here."""
    del label
    for instruction, told in _asked(task):
        arguments(instruction, told)


@ships(needs_label=False, check_row=check_row)
@in_a_cell()
def ifbench(text: str, label: Any, task: dict[str, Any], /) -> float:
    """1 when the text keeps each of `instruction_id_list` of the row's metadata, told by `kwargs`.

    Raises RuleError as `check_row` does.
    """
    del label
    # each is looked at, so that whether a row can be checked does not hang on the text
    kept = [is_kept(each, text, told) for each, told in _asked(task)]
    return float(all(kept))


def _asked(task: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """The instructions of a row by their id, each with its arguments."""
    metadata = task.get("metadata")
    known: Mapping[str, Any] = metadata if isinstance(metadata, Mapping) else {}
    named = known.get("instruction_id_list")
    ids = [str(each).strip() for each in named if each] if isinstance(named, list) else []
    if not ids:
        raise RuleError("ifbench wants `instruction_id_list`, a list, in the row's metadata")
    return list(zip(ids, _told(known.get("kwargs"), len(ids)), strict=True))


def _told(given: Any, num: int) -> list[Mapping[str, Any]]:
    """The arguments of each instruction: one mapping for all, or a list, of which the last holds
    for those behind it."""
    if isinstance(given, Mapping):
        return [given] * num
    listed = given if isinstance(given, list) else []
    told = [each if isinstance(each, Mapping) else {} for each in listed][:num]
    return told + [told[-1] if told else {}] * (num - len(told))
