"""What is saved of an episode between two turns, so that another attempt goes on from there.

An Env offers it by defining `snapshot` and `restore`. The buffer keeps the newest of each episode
and hands it out with the next assignment; to the buffer it is bytes.
"""

from collections.abc import Awaitable, Callable

import msgspec

from agentrl.columns import Column
from agentrl.errors import EnvError

__all__ = ["EpisodeSnapshot", "Save"]

Save = Callable[[bytes], Awaitable[None]]


class EpisodeSnapshot(msgspec.Struct, frozen=True):
    """An episode that waits for its next turn. `env`: what its Env made of itself; `columns`: of
    its tokens, one segment after the other, and `optional`: which of each segment's are beside
    `COLUMNS`; reward and metrics as earned so far, and `turn_rewards`, by turn; `played_s`: seconds
    of its time that are spent."""

    env: bytes
    columns: list[bytes]
    reward: float
    metrics: dict[str, float]
    calls_left: int | None
    played_s: float
    optional: list[tuple[Column, ...]] = []
    turn_rewards: list[float] = []

    def encode(self) -> bytes:
        """As bytes."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> "EpisodeSnapshot":
        """Raises EnvError for what this version of agentrl did not encode."""
        try:
            return msgspec.msgpack.decode(data, type=cls)
        except (msgspec.MsgspecError, ValueError) as error:
            raise EnvError(f"a saved episode cannot be read: {error}") from error
