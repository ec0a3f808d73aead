"""`ifbench`: whether a text keeps every instruction of its row."""

from collections.abc import Mapping
from typing import Any

from agentrl.envs.grading.cell import RuleError, in_a_cell
from agentrl.envs.grading.instructions import asked, classic, newer
from agentrl.envs.grading.instructions.checks import is_kept
from agentrl.envs.rewards.base import ships

__all__ = ["FAMILIES", "ifbench"]

FAMILIES = (asked, classic, newer)


@ships(needs_label=False)
@in_a_cell()
def ifbench(text: str, label: Any, task: dict[str, Any], /) -> float:
    """1 when the text keeps each of `instruction_id_list` of the row's metadata, told by `kwargs`.

    Raises RuleError for a row without instructions, or with one that has no check here.
    """
    del label
    metadata = task.get("metadata")
    known: Mapping[str, Any] = metadata if isinstance(metadata, Mapping) else {}
    ids = [str(each).strip() for each in known.get("instruction_id_list") or () if each]
    if not ids:
        raise RuleError("ifbench wants `instruction_id_list` in the row's metadata")
    told = _told(known.get("kwargs"), len(ids))
    # each is looked at, so that whether a row can be checked does not hang on the text
    kept = [is_kept(each, text, dict(args)) for each, args in zip(ids, told, strict=True)]
    return float(all(kept))


def _told(given: Any, num: int) -> list[Mapping[str, Any]]:
    """The arguments of each instruction: one mapping for all, or a list, of which the last holds
    for those behind it."""
    if isinstance(given, Mapping):
        return [given] * num
    told = [each if isinstance(each, Mapping) else {} for each in given or ()][:num]
    return told + [told[-1] if told else {}] * (num - len(told))
