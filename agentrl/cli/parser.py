"""An argument parser that says what a mistyped word was probably meant to be."""

import argparse
from collections.abc import Sequence
from typing import Any

from agentrl.nearest import nearest

__all__ = ["Parser"]


class Parser(argparse.ArgumentParser):
    """As argparse's; `agentrl env chekc` and `--evn-args` end with the nearest words there are."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse; what is left over is refused by the sub-command that it was given to."""
        found, left = super().parse_known_args(args, namespace)
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
