"""What a reward that ships says of itself beside its rule, under `@ships`."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

__all__ = ["Facts", "facts_of", "ships"]

F = TypeVar("F", bound=Callable[..., Any])


class Facts(msgspec.Struct, frozen=True):
    """Of a reward that ships.

    needs_label  a row without a label is refused
    keys         of the dict that it returns; empty: it returns a number
    wants        what it is called with by name beside text, label and task: `url` (--rm-url),
                 `prompt` (as the row has it), `spec` (of a judge)
    is_spoken    it reads what the model says, without its reasoning
    ranks        the same of the answers of a group, a list of numbers, for --group-rm
    reads        called as the reward is: what the text answers, as votes of an evaluation are
                 counted (`maj@k`); None: it reads no single answer
    check_row    called with the label and the row before it is played: raises EnvError for a row
                 that the reward has no rule for; None: only an answer shows that
    """

    needs_label: bool = True
    keys: tuple[str, ...] = ()
    wants: tuple[str, ...] = ()
    is_spoken: bool = False
    ranks: Callable[..., Any] | None = None
    reads: Callable[..., Any] | None = None
    check_row: Callable[[Any, Mapping[str, Any]], None] | None = None


_FACTS: dict[Callable[..., Any], Facts] = {}


def ships(
    *,
    needs_label: bool = True,
    keys: tuple[str, ...] = (),
    wants: tuple[str, ...] = (),
    is_spoken: bool = False,
    ranks: Callable[..., Any] | None = None,
    reads: Callable[..., Any] | None = None,
    check_row: Callable[[Any, Mapping[str, Any]], None] | None = None,
) -> Callable[[F], F]:
    """Say it of the function below."""

    def said(function: F) -> F:
        _FACTS[function] = Facts(needs_label, keys, wants, is_spoken, ranks, reads, check_row)
        return function

    return said


def facts_of(reward: Callable[..., Any]) -> Facts:
    """What a reward has said of itself; of a user's, what holds of one that has not."""
    return _FACTS.get(reward, Facts(needs_label=False, is_spoken=True))
