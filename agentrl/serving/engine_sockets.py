"""How the processes of an engine with data-parallel attention reach each other: by socket files.

SGLang has them speak over TCP then, without a key, because such an engine may be on several nodes.
Any user of the host could send it requests, which hold pickled objects, and its ports, counted up
from that of its HTTP server, may be another engine's. An engine of agentrl is on one node, so its
sockets are files of a folder that its own user alone may open, as SGLang itself does for every
other engine.
"""

import dataclasses
import itertools
import os
import tempfile
from typing import Any

__all__ = ["register_sockets"]

#: Environment variable with the folder of the sockets; children have that of the first process.
_FOLDER = "AGENTRL_ENGINE_SOCKETS"
#: Fields of SGLang's `PortArgs` that name sockets, and are ports of TCP with attention ranks.
_SOCKETS = ("tokenizer", "scheduler_input", "detokenizer", "rpc", "metrics")


def register_sockets() -> None:
    """Have SGLang use the files, when it applies its hooks."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    numbers = itertools.count()

    def bind_rank(context: Any, kind: Any, host: Any = None, restrict_peers: bool = False) -> Any:
        from sglang.srt.utils.network import get_zmq_socket

        del host, restrict_peers
        number = next(numbers)
        return number, get_zmq_socket(context, kind, _rank_socket(number), True)

    controller = "sglang.srt.managers.data_parallel_controller"
    # Ports that nobody binds may be anybody's.
    HookRegistry.register(
        "sglang.srt.server_args.wait_port_available", _nobody_waits, HookType.REPLACE
    )
    HookRegistry.register("sglang.srt.server_args.PortArgs.init_new", _as_files, HookType.AFTER)
    HookRegistry.register(f"{controller}.get_zmq_socket_on_host", bind_rank, HookType.REPLACE)
    HookRegistry.register(
        f"{controller}.DataParallelController._broadcast_worker_ports",
        _on_one_node,
        HookType.REPLACE,
    )


def _as_files(
    ports: Any, settings: Any, dp_rank: int | None = None, worker_ports: list[int] | None = None
) -> Any:
    """SGLang's `PortArgs` with files in place of TCP; `worker_ports`: the numbers of the ranks'."""
    del settings
    if not ports.tokenizer_ipc_name.startswith("tcp://"):
        return ports
    files = {f"{name}_ipc_name": _socket(name) for name in _SOCKETS}
    if dp_rank is not None and worker_ports is not None:
        files["scheduler_input_ipc_name"] = _rank_socket(worker_ports[dp_rank])
    return dataclasses.replace(ports, **files)


def _on_one_node(controller: Any, settings: Any, worker_ports: list[int]) -> list[int]:
    """Nobody else has to learn them."""
    del controller, settings
    return worker_ports


def _nobody_waits(*args: Any, **kwargs: Any) -> None:
    del args, kwargs


def _rank_socket(number: int) -> str:
    return _socket(f"rank-{number}")


def _socket(name: str) -> str:
    folder = os.environ.get(_FOLDER)
    if folder is None:
        folder = os.environ[_FOLDER] = tempfile.mkdtemp(prefix="sockets-")
    return f"ipc://{folder}/{name}"
