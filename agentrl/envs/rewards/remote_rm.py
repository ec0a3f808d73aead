"""`remote_rm`: what a reward model says that listens at --rm-url.

Its answers are remembered, MAX_REMEMBERED in a process: an equal answer to an equal task is sent
once, as it is to a judge.
"""

import hashlib
import json
from typing import Any

import anyio

from agentrl.envs.grading.post import post
from agentrl.envs.grading.remembered import Remembered
from agentrl.envs.rewards.base import ships

__all__ = ["MAX_REMEMBERED", "remote_rm"]

#: Requests of one process that are under way at once: a server that has more than it can answer in
#: its time would answer none.
_AT_ONCE = anyio.CapacityLimiter(64)
#: Answers of reward models that a process remembers.
MAX_REMEMBERED = 10_000
_remembered = Remembered(MAX_REMEMBERED)


@ships(needs_label=False, wants=("url", "prompt"))
async def remote_rm(
    text: str, label: Any, task: dict[str, Any], /, *, url: str, prompt: Any
) -> Any:
    """The JSON that the address answers to `{"prompt": ..., "response": ..., "label": ...}`: a
    number, or a dict of which --reward-key names one. `prompt` is as the row has it.

    Raises EnvError where it refuses the request, InfrastructureError where it is down.
    """
    del task
    payload = {"prompt": prompt, "response": text, "label": label}
    key = hashlib.sha256(json.dumps([url, payload], default=repr).encode()).digest()

    async def ask() -> Any:
        async with _AT_ONCE:
            return await post(url, payload)

    return await _remembered.get(key, ask)
