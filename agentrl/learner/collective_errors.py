"""Ranks that fail together: what goes wrong on one, or differs between them, is raised on all.

A rank that raises alone leaves the others in a collective until its timeout. So work that can fail
on one rank is attempted, its error is told to the others as data, and all raise.
"""

from collections.abc import Callable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from agentrl import errors
from agentrl.errors import AgentRLError, DataError, InfrastructureError

__all__ = ["Rank", "attempt", "by_source", "require_same", "together"]

T = TypeVar("T")


class Rank(Protocol):
    """What is needed of a `TrainBackend` here."""

    is_source: bool

    def broadcast_bytes(self, data: bytes | None) -> bytes: ...


class _Failure(msgspec.Struct, frozen=True):
    """An error on its way to other ranks: the name of its class and its text."""

    kind: str
    text: str


def attempt(action: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """What `action` returns, or the error it raises; an OSError as InfrastructureError."""
    try:
        return action(), None
    except OSError as error:
        wrapped = InfrastructureError(str(error))
        wrapped.__cause__ = error
        return None, wrapped
    except Exception as error:  # whatever it is, the other ranks are waiting
        return None, error


def _failure_of(error: Exception | None) -> _Failure | None:
    """`error` as data."""
    return None if error is None else _Failure(type(error).__name__, str(error))


def _retold(rank: int, failure: _Failure) -> AgentRLError:
    """The error that `rank` told of. Of its class if that is agentrl's, else AgentRLError."""
    kind = getattr(errors, failure.kind, None)
    if isinstance(kind, type) and issubclass(kind, AgentRLError):
        return kind(f"learner rank {rank}: {failure.text}")
    return AgentRLError(f"learner rank {rank}: {failure.kind}: {failure.text}")


def by_source(rank: Rank, action: Callable[[], T], kind: Any, number: int = 0) -> T:
    """What `action` returns on the source rank, of type `kind`, on every rank; or its error.
    Collective. `number`: of the source among all ranks, for the words of the others."""
    data: bytes | None = None
    error: Exception | None = None
    if rank.is_source:
        answer, error = attempt(action)
        encoded = msgspec.Raw(msgspec.msgpack.encode(answer, enc_hook=str))
        data = msgspec.msgpack.encode(_Word(_failure_of(error), encoded))
    word = msgspec.msgpack.decode(rank.broadcast_bytes(data), type=_Word)
    if error is not None:
        raise error
    if word.failure is not None:
        raise _retold(number, word.failure)
    found: T = msgspec.msgpack.decode(word.answer, type=kind, dec_hook=_to_path)
    return found


def together(action: Callable[[], Any], all_gather: Callable[[Any], list[Any]]) -> list[Any]:
    """What `action` returns on each rank, as builtins, or the error of a rank, on every rank.
    Collective."""
    answer, error = attempt(action)
    everyone = all_gather([msgspec.to_builtins(_failure_of(error)), answer])
    if error is not None:
        raise error
    for rank, (failure, _) in enumerate(everyone):
        if failure is not None:
            raise _retold(rank, msgspec.convert(failure, _Failure))
    return [each for _, each in everyone]


def require_same(
    answers: Mapping[str, Any], all_gather: Callable[[Any], list[Any]], advice: str
) -> None:
    """Raise DataError, on all ranks, unless each has the same `answers`. Collective."""
    mine = {
        name: blake2b(msgspec.msgpack.encode(answer, enc_hook=float), digest_size=16).hexdigest()
        for name, answer in answers.items()
    }
    ranks = all_gather(mine)
    for name in answers:
        odd = [str(rank) for rank, its in enumerate(ranks) if its[name] != ranks[0][name]]
        if odd:
            raise DataError(
                f"learner rank {', '.join(odd)} of {len(ranks)} has another {name} than rank 0: "
                f"{advice}"
            )


class _Word(msgspec.Struct, frozen=True):
    """What the source tells the other ranks."""

    failure: _Failure | None
    answer: msgspec.Raw


def _to_path(_kind: Any, text: str) -> Path:
    return Path(text)
