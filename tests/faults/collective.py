"""A collective of one sender over plain TCP, in the place of gloo: engines need no torch.

    sender listens -> each rank connects -> bucket: length, bytes -> each rank answers one byte

As with gloo a rank that is gone fails the whole transfer.
"""

import asyncio
import socket
import struct
from concurrent.futures import Future
from typing import Any

import torch
import torch.distributed as dist

from agentrl.serving.collective import SenderGroup

__all__ = ["TcpGroup", "receive_bucket"]

_LENGTH = struct.Struct("<Q")
_TAKEN = b"+"


class _Work:
    """A transfer under way."""

    def __init__(self, ranks: list[socket.socket]) -> None:
        self._ranks = ranks

    def wait(self) -> None:
        """Until every rank has all of it. RuntimeError when one has gone."""
        for rank in self._ranks:
            try:
                answer = rank.recv(1)
            except OSError as error:
                raise RuntimeError(f"a rank did not answer: {error}") from error
            if answer != _TAKEN:
                raise RuntimeError("a rank has left the collective")


class TcpGroup(SenderGroup):
    """The sender's side; see `SenderGroup`, whose errors it raises."""

    def __init__(self, name: str, *, host: str, timeout_s: float) -> None:
        self.name = name
        self.host = host
        self.backend = "gloo"
        self.connect_s = timeout_s
        self._timeout_s = timeout_s
        self._listener = socket.create_server((host, 0))
        self._listener.settimeout(timeout_s)
        self.port = self._listener.getsockname()[1]
        self._ranks: list[socket.socket] = []

    def connect(self, world_size: int) -> None:
        while len(self._ranks) < world_size - 1:
            try:
                rank, _ = self._listener.accept()
            except OSError as error:
                raise RuntimeError(f"{len(self._ranks)} of {world_size - 1} ranks came") from error
            rank.settimeout(self._timeout_s)
            self._ranks.append(rank)

    def broadcast(self, tensor: torch.Tensor) -> Future[dist.Work]:
        data = tensor.numpy().tobytes()
        answer = Future[Any]()
        try:
            for rank in self._ranks:
                rank.sendall(_LENGTH.pack(len(data)) + data)
            answer.set_result(_Work(self._ranks))
        except OSError as error:
            answer.set_exception(RuntimeError(f"a rank took nothing: {error}"))
        return answer

    def abort(self, answer: Future[dist.Work] | None = None) -> None:
        self.close()

    def close(self) -> None:
        for rank in self._ranks:
            rank.close()
        self._ranks = []
        self._listener.close()


async def receive_bucket(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """The next bucket, on an engine's side. OSError or EOFError when the sender has gone."""
    (size,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    payload = await reader.readexactly(size)
    writer.write(_TAKEN)
    await writer.drain()
    return payload
