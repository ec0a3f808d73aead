"""What a sub-command prints: lines in which no hidden character is left, to a reader who may go."""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from agentrl.visible import visible

__all__ = ["say", "until_the_reader_leaves"]


def say(lines: Iterable[str]) -> None:
    """Print each line, with its hidden characters shown."""
    for line in lines:
        sys.stdout.write(f"{visible(line)}\n")
    sys.stdout.flush()


@contextmanager
def until_the_reader_leaves() -> Iterator[None]:
    """`head` closes the pipe when it has seen enough; what is still buffered then goes nowhere."""
    try:
        yield
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
