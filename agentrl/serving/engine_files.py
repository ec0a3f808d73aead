"""Entry point of an SGLang plugin (`sglang.srt.plugins`): an engine leaves no shared memory behind.

SGLang tells its own processes of their load through a file in `/dev/shm` that nobody removes. An
engine of agentrl has a folder for its temporary files (`TMPDIR`), which is removed when it has
ended, even by SIGKILL: this puts the file there. SGLang calls `activate` in each of its processes
on every host where agentrl is installed; engines that agentrl did not start stay as they are.
"""

import os
import tempfile
from pathlib import Path

__all__ = ["ENGINE_MARK", "activate"]

#: Environment variable of an engine that agentrl started.
ENGINE_MARK = "AGENTRL_ENGINE"


def activate() -> None:
    """Choose the place of the load file in an engine of agentrl."""
    if ENGINE_MARK not in os.environ:
        return
    # There already when SGLang calls.
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(
        "sglang.srt.managers.load_snapshot.shm_path_for", _load_file, HookType.REPLACE
    )


def _load_file(instance_id: str) -> str:
    return str(Path(tempfile.gettempdir()) / f"loads-{Path(instance_id).name}")
