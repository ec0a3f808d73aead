"""`remote_rm`: what a reward model says that listens at --rm-url."""

from typing import Any

from agentrl.envs.grading.post import post
from agentrl.envs.rewards.base import ships

__all__ = ["remote_rm"]


@ships(needs_label=False, wants=("url", "prompt"))
async def remote_rm(
    text: str, label: Any, task: dict[str, Any], /, *, url: str, prompt: Any
) -> Any:
    """The JSON that the address answers to `{"prompt": ..., "response": ..., "label": ...}`: a
    number, or a dict of which --reward-key names one. `prompt` is as the row has it.

    Raises EnvError where it refuses the request, InfrastructureError where it is down.
    """
    del task
    return await post(url, {"prompt": prompt, "response": text, "label": label})
