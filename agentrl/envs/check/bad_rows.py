"""Rows that cannot be played: how many, the first few of each reason, and why."""

import msgspec

__all__ = ["BadRows"]

#: Rows that are named for each reason, and reasons that are told.
_SHOWN, _REASONS = 3, 3


class BadRows(msgspec.Struct):
    """What was found so far: `num` rows, and places of the first of them by reason, as
    `rows.jsonl line 3`."""

    num: int = 0
    places: dict[str, list[str]] = {}

    def add(self, place: str, why: str) -> None:
        """Count the row at a place, which cannot be played."""
        self.num += 1
        if why in self.places or len(self.places) < _REASONS:
            self.places.setdefault(why, []).append(place)

    def __str__(self) -> str:
        """`rows.jsonl line 3, line 5: the task has no 'input' (...)`, and so on for each reason."""
        told = [f"{_named(places)}: {why}" for why, places in self.places.items()]
        if others := self.num - sum(map(len, self.places.values())):
            told.append(f"and {others} for other reasons")
        return "; ".join(told)


def _named(places: list[str]) -> str:
    """The first of them, the file of several once."""
    shown, last = [], ""
    for place in places[:_SHOWN]:
        file, kind, number = place.rsplit(" ", 2)
        shown.append(f"{kind} {number}" if file == last else place)
        last = file
    more = len(places) - _SHOWN
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")
