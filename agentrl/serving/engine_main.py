"""Main module of an engine process on a CPU host: SGLang's own server, started cheaply.

`python -m sglang.launch_server` spawns a scheduler and a detokenizer that each import all of SGLang
again. Without an accelerator nothing forbids to fork them instead: a third of the processor time,
half of the memory and half of the wait. Two hooks of SGLang's plugin registry do it, and a third
one groups prefills (`cpu_schedule`); SGLang's files and arguments stay as they are. Only
`launch.engine_command` runs this module.

Forking is safe only while this process has one thread: anything else is refused.
"""

import gc
import multiprocessing
import sys
import threading
from typing import Any

from sglang.launch_server import run_server
from sglang.srt.plugins import load_plugins
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from sglang.srt.server_args import prepare_server_args
from sglang.srt.utils import kill_process_tree

from agentrl.serving.cpu_schedule import register_prefill_gate

__all__ = ["main"]


def _fork_children(result: object, *args: Any, **kwargs: Any) -> None:
    """Runs after SGLang chose "spawn", before it starts its children."""
    if threading.active_count() > 1:
        names = ", ".join(thread.name for thread in threading.enumerate())
        raise RuntimeError(f"an engine cannot fork its children beside running threads: {names}")
    gc.collect()
    gc.freeze()  # the collector would otherwise write to, and so copy, every shared page
    multiprocessing.set_start_method("fork", force=True)


def _already_frozen(*args: Any, **kwargs: Any) -> None:
    """SGLang asks itself over HTTP to freeze, before its port is open when warm-up is skipped."""


def main(argv: list[str]) -> None:
    """Serve until SIGTERM."""
    HookRegistry.register(
        "sglang.srt.entrypoints.engine._set_envs_and_config", _fork_children, HookType.AFTER
    )
    HookRegistry.register(
        "sglang.srt.entrypoints.http_server._freeze_gc_after_server_warmup",
        _already_frozen,
        HookType.REPLACE,
    )
    register_prefill_gate()
    load_plugins()
    try:
        run_server(prepare_server_args(argv))
    finally:
        kill_process_tree(multiprocessing.current_process().pid, include_parent=False)


if __name__ == "__main__":
    main(sys.argv[1:])
