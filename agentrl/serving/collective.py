"""The sender's side of the collective that carries weights to a fleet of engines.

SGLang joins such a group through `torch.distributed`'s own helper for new groups, with the store
keys prefixed by the group's name; both sides must build it the same way or they wait for each other
for ever. Rank 0 sends, the engines' ranks follow. One group lives until its membership changes:

    OPEN -> CONNECTED -> CLOSED

Gloo tells the sender when the process of a peer is gone, and not when its host is. NCCL tells
neither: its broadcast is a kernel that waits on the GPU, `wait` returns at once, and to destroy the
group would wait for that kernel, or for a peer that is gone, for ever: it is aborted instead. And
its ranks first meet inside their first broadcast: a rank that never comes, or fails there, leaves
the others in that call for ever.

Nothing here imports SGLang.
"""

import socket
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from datetime import timedelta
from functools import partial
from threading import Thread

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.distributed.distributed_c10d import (
    GroupName,
    PrefixStore,
    _abort_process_group,
    _new_process_group_helper,
    _set_pg_timeout,
    _world,
)

from agentrl.errors import PushError

__all__ = ["SenderGroup"]

#: torch 2.14, which SGLang has on GPUs, gave it a public name and warns of the old one.
_set_timeout = getattr(dist, "set_timeout", _set_pg_timeout)


class SenderGroup:
    """Rank 0 of the group `name`. Its store listens on `port` of `host` as soon as it exists, and
    nowhere else: whoever reaches it may write to it.

    `ports`: it takes one of these (none: any that is free), and raises PushError where each is
    taken. `connect_s` bounds the rendezvous, `timeout_s` each broadcast.
    """

    def __init__(
        self,
        name: str,
        *,
        host: str,
        backend: str,
        timeout_s: float,
        connect_s: float,
        ports: Sequence[int] = (),
    ) -> None:
        self.name = name
        self.host = host
        self.backend = backend
        self.connect_s = connect_s
        self._timeout = timedelta(seconds=timeout_s)
        self._connect_timeout = timedelta(seconds=connect_s)
        listener = _listener(host, ports)
        self.port: int = listener.getsockname()[1]
        self._store: TCPStore | None = TCPStore(
            host,
            self.port,
            is_master=True,
            timeout=self._connect_timeout,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
        self._group: dist.ProcessGroup | None = None

    def connect(self, world_size: int) -> None:
        """Meet the `world_size` - 1 other ranks; blocks until all of them are there.

        Raises RuntimeError (torch's own) when one is missing at the deadline.
        """
        assert self._store is not None
        self._group, _ = _new_process_group_helper(
            world_size,
            0,
            [],
            dist.Backend(self.backend),
            PrefixStore(self.name, self._store),
            group_name=GroupName(self.name),
            timeout=self._connect_timeout,
        )
        _world.pg_group_ranks[self._group] = {rank: rank for rank in range(world_size)}
        _set_timeout(self._timeout, self._group)

    @property
    def sees_losses(self) -> bool:
        """Whether a broadcast fails when the process of a peer is gone."""
        return self.backend != "nccl"

    def broadcast(self, tensor: torch.Tensor) -> "Future[dist.Work]":
        """Start sending `tensor`; wait for what the answer brings. It brings RuntimeError when a
        peer is gone, and nothing where ranks of NCCL wait for one that does not come."""
        answer: Future[dist.Work] = Future()
        stream = torch.cuda.current_stream(tensor.device) if tensor.is_cuda else None
        send = partial(_send, self._group, tensor, stream, answer)
        if self.sees_losses:
            send()
        else:
            Thread(target=send, name=f"send-{self.name}", daemon=True).start()
        return answer

    def close(self) -> None:
        """Close every connection: peers that still wait for a broadcast see it fail."""
        if self._group is not None:
            dist.destroy_process_group(self._group)
        self._group = None
        self._store = None

    def abort(self, answer: "Future[dist.Work] | None" = None) -> None:
        """Close it at once: while the broadcast that brings `answer` is under way, which may never
        end, or (NCCL) with peers that may be gone."""
        if self._group is not None and self.sees_losses:
            assert answer is not None
            # Whoever drops the last reference waits for the broadcast, as long as its deadline.
            Thread(target=_see_out, args=[self._group, answer], daemon=True).start()
        elif self._group is not None:
            _abort_process_group(self._group)
            self._group = None
        self.close()


def _listener(host: str, ports: Sequence[int]) -> socket.socket:
    if not ports:
        return socket.create_server((host, 0))
    for port in ports:
        with suppress(OSError):
            return socket.create_server((host, port))
    raise PushError(
        f"no port on {host} for a weight push: another program listens on each of "
        f"{', '.join(map(str, ports))}, which this run took of --port-range"
    )


def _send(
    group: dist.ProcessGroup | None,
    tensor: torch.Tensor,
    stream: torch.cuda.Stream | None,
    answer: "Future[dist.Work]",
) -> None:
    assert group is not None
    options = dist.BroadcastOptions()
    options.rootRank = 0
    try:
        with nullcontext() if stream is None else torch.cuda.stream(stream):
            answer.set_result(group.broadcast([tensor], options))
    except RuntimeError as error:
        answer.set_exception(error.with_traceback(None))  # its frames would keep the group open


def _see_out(_group: dist.ProcessGroup, answer: "Future[dist.Work]") -> None:
    with suppress(RuntimeError):
        answer.result().wait()
