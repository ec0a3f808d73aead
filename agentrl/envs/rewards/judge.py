"""`judge`: what a language model at --rm-url thinks of an answer, or of a group's side by side."""

from collections.abc import Sequence
from typing import Any

from agentrl.envs.grading.judging import JudgeSpec, judged, ranked
from agentrl.envs.rewards.base import ships

__all__ = ["judge"]


async def ranks(
    texts: Sequence[str], label: Any, task: dict[str, Any], /, *, url: str, prompt: Any, spec: Any
) -> list[float]:
    """The answers of a group from 1, the best, to 0, the last."""
    del task
    assert isinstance(spec, JudgeSpec)
    return await ranked(url, spec, prompt, label, texts)


@ships(needs_label=False, wants=("url", "prompt", "spec"), is_spoken=True, ranks=ranks)
async def judge(
    text: str, label: Any, task: dict[str, Any], /, *, url: str, prompt: Any, spec: Any
) -> float:
    """The score that the judge gives the answer, from 0 to 1.

    Raises InfrastructureError where it is down or gives no verdict.
    """
    del task
    assert isinstance(spec, JudgeSpec)
    return await judged(url, spec, prompt, label, text)
