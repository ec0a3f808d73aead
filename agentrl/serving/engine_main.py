"""Main module of an engine process: SGLang's own server with the key of the run, and on a CPU host
started cheaply.

SGLang takes its key from the command line, where other users may read it; here it comes from the
file that `KEY_FILE` names.

SGLang spawns a scheduler and a detokenizer that each import all of it again. Without an accelerator
nothing forbids to fork them instead: a third of the processor time, half of the memory and half of
the wait. Two hooks of SGLang's plugin registry do it. Others wait where SGLang does not
(`cpu_schedule`), stand in for kernels (`cpu_norms`, `cpu_delta_net`, `cpu_experts`) or for what a
backend must be called (`cpu_sinks`); SGLang's files and arguments stay as they are. Only
`launch.engine_command` runs this module.

Forking is safe only while this process has one thread: anything else is refused. The process
between it and the schedulers of an engine with groups of ranks has ZeroMQ's threads as well when it
forks; they hold no lock of Python's, and its children use none of its sockets.
"""

import gc
import multiprocessing
import os
import sys
import threading
from typing import Any

from sglang.launch_server import run_server
from sglang.srt.entrypoints.http_server import app
from sglang.srt.plugins import load_plugins
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from sglang.srt.server_args import prepare_server_args
from sglang.srt.utils import kill_process_tree

from agentrl.serving.cpu import EXACT, PLUGIN_NAME
from agentrl.serving.cpu_delta_net import register_delta_nets
from agentrl.serving.cpu_experts import register_experts
from agentrl.serving.cpu_norms import register_norms
from agentrl.serving.cpu_schedule import register_waits
from agentrl.serving.cpu_sinks import register_sinks
from agentrl.serving.endpoints import add_endpoints
from agentrl.serving.key import key_of_this_process
from agentrl.serving.routes import register_routes

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
    on_cpu = os.environ.get("SGLANG_PLATFORM") == PLUGIN_NAME
    if on_cpu:
        _start_cheaply()
    if "--enable-return-routed-experts" in argv:
        register_routes(on_cpu=on_cpu)
    load_plugins()
    add_endpoints(app)
    settings = prepare_server_args(argv)
    settings.api_key = key_of_this_process()
    try:
        run_server(settings)
    finally:
        kill_process_tree(multiprocessing.current_process().pid, include_parent=False)


def _start_cheaply() -> None:
    HookRegistry.register(
        "sglang.srt.entrypoints.engine._set_envs_and_config", _fork_children, HookType.AFTER
    )
    HookRegistry.register(
        "sglang.srt.entrypoints.http_server._freeze_gc_after_server_warmup",
        _already_frozen,
        HookType.REPLACE,
    )
    register_waits()
    register_norms()
    register_delta_nets()
    register_experts()
    register_sinks()
    if EXACT in os.environ:
        from agentrl.serving.cpu_exact import register_exact_layers

        register_exact_layers()


if __name__ == "__main__":
    main(sys.argv[1:])
