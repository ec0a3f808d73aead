"""The process that gives requests to an engine's groups of ranks, on a CPU host.

SGLang's asks for the next one again and again, which burns a whole core. Here it waits for one.
"""

from typing import Any

__all__ = ["register_dispatch"]

#: SGLang's watchdog wants to hear of it more often than that.
_WAIT_MS = 1000


def register_dispatch() -> None:
    """Have it wait, when SGLang applies its hooks."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    place = "sglang.srt.managers.data_parallel_controller.DataParallelController.event_loop"
    HookRegistry.register(place, _dispatch, HookType.REPLACE)


def _dispatch(controller: Any) -> None:
    from sglang.srt.managers.io_struct import sock_recv

    requests = controller.recv_from_tokenizer
    while True:
        controller.soft_watchdog.feed()
        if requests.poll(_WAIT_MS):
            controller._request_dispatcher(sock_recv(requests))
