"""An engine of more devices than a node has: equal parts, each a process on a node of its own.

    engine-0     the first part has the engine's name and its address, and speaks HTTP
    engine-0.1   the others: their ranks hear from those of the first

SGLang's ranks of one engine count through its parts. A part that ends takes the others along.
"""

from agentrl.serving.launch import EnginePart

__all__ = ["engine_of", "num_parts", "part_names", "part_of"]


def num_parts(size: int, largest: int) -> int:
    """The fewest equal parts of an engine of `size` devices that each fit a node of `largest`."""
    return next(n for n in range(1, size + 1) if size % n == 0 and size // n <= max(1, largest))


def part_names(engine: str, count: int) -> list[str]:
    """Process names of the parts of an engine, in the order of its ranks."""
    return [engine, *(f"{engine}.{number}" for number in range(1, count))]


def engine_of(process: str) -> str:
    """The engine that a process is a part of."""
    return process.partition(".")[0]


def part_of(process: str, count: int, meets_at: str) -> EnginePart:
    """Which of `count` parts a process is. `meets_at`: ADDRESS:PORT where their ranks meet."""
    return EnginePart(int(process.partition(".")[2] or 0), count, meets_at)
