"""Rows that cannot be played: how many, the first few of each reason, and why."""

import msgspec

__all__ = ["BadRows"]

#: Rows that are named for each reason, and reasons that are told.
_SHOWN, _REASONS = 3, 3


class BadRows(msgspec.Struct):
    """What was found so far: `num` rows, and ids of the first of them by reason."""

    num: int = 0
    ids: dict[str, list[str]] = {}

    def add(self, task_id: str, why: str) -> None:
        """Count the row of a task that cannot be played."""
        self.num += 1
        if why in self.ids or len(self.ids) < _REASONS:
            self.ids.setdefault(why, []).append(task_id)

    def __str__(self) -> str:
        """`rows:3, rows:5: the task has no 'input' (...)`, and so on for each reason."""
        told = [f"{_named(ids)}: {why}" for why, ids in self.ids.items()]
        if others := self.num - sum(map(len, self.ids.values())):
            told.append(f"and {others} for other reasons")
        return "; ".join(told)


def _named(ids: list[str]) -> str:
    more = len(ids) - _SHOWN
    return ", ".join(ids[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
