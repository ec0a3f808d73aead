"""Entry point of an SGLang plugin (`sglang.srt.plugins`): where an engine keeps what is its own.

An engine of agentrl has a folder for its temporary files (`TMPDIR`), which is removed when it has
ended, even by SIGKILL. Two things go there:

loads  SGLang's processes tell each other of their load through a file in `/dev/shm` that nobody
       removes
ranks  they meet through a TCP store that listens on every interface, and whoever reaches it may
       write to it; on one machine a file does as well (an engine of several nodes has the store)

The key of the run is kept out of its log, and what its processes tell each other off the network
(`engine_sockets`). SGLang calls `activate` in each of its processes on every
host where agentrl is installed; engines that agentrl did not start stay as they are.
"""

import os
import secrets
import tempfile
from pathlib import Path

from agentrl.serving.engine_sockets import register_sockets
from agentrl.serving.key import hide, key_of_this_process

__all__ = ["ENGINE_MARK", "MEETING_PLACE", "activate"]

#: Environment variable of an engine that agentrl started.
ENGINE_MARK = "AGENTRL_ENGINE"
#: SGLang's own variable for how its ranks meet; its other processes inherit it from the first one.
MEETING_PLACE = "SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE"


def activate() -> None:
    """Choose the places of an engine of agentrl, and hide its key."""
    if ENGINE_MARK not in os.environ:
        return
    if key := key_of_this_process():
        hide(key)
    # There already when SGLang calls.
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(
        "sglang.srt.managers.load_snapshot.shm_path_for", _load_file, HookType.REPLACE
    )
    register_sockets()
    # A file of a predecessor would tell of ranks that are no more.
    meeting = Path(tempfile.gettempdir()) / f"ranks-{secrets.token_hex(6)}"
    os.environ.setdefault(MEETING_PLACE, meeting.as_uri())


def _load_file(instance_id: str) -> str:
    return str(Path(tempfile.gettempdir()) / f"loads-{Path(instance_id).name}")
