"""An argument parser that says what a mistyped word was probably meant to be."""

import argparse
import math
from collections.abc import Sequence
from typing import Any

from agentrl.nearest import nearest

__all__ = ["Parser", "seconds"]


class Parser(argparse.ArgumentParser):
    """As argparse's; `agentrl env chekc` and `--evn-args` end with the nearest words there are.
    `passes_on`: where what it does not know is kept in place of that, for another parser."""

    passes_on: str | None = None

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse; what is left over is refused by the sub-command that it was given to."""
        found, left = super().parse_known_args(args, namespace)
        if self.passes_on is not None:
            setattr(found, self.passes_on, left)
            return found, []
        if left:
            flags = [flag for action in self._actions for flag in action.option_strings]
            word = left[0].partition("=")[0]
            if not word.startswith("-"):
                self.error(f"{left[0]!r} is one word too many")
            meant = nearest(word, flags) or "; --help tells what there is"
            self.error(f"there is no {word}{meant}")
        return found, left

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            meant = nearest(str(value), known) or f"; choose from {', '.join(known)}"
            raise argparse.ArgumentError(action, f"invalid choice: {value!r}{meant}")


def seconds(text: str) -> float:
    """The type of a flag that takes a time."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 < found < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return found
