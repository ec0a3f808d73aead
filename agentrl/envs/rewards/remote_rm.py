"""`remote_rm`: what a reward model says that listens at --rm-url.

Its answers are remembered, MAX_REMEMBERED in a process: an equal answer to an equal task is sent
once, as it is to a judge.
"""

import hashlib
import json
from typing import Any

from agentrl.envs.grading.post import post
from agentrl.envs.grading.remembered import Remembered
from agentrl.envs.rewards.base import ships

__all__ = ["MAX_REMEMBERED", "remote_rm"]

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
    return await _remembered.get(key, lambda: post(url, payload))
