"""`RewardInput`: what a reward may look at."""

from typing import Any

import msgspec

__all__ = ["RewardInput"]


class RewardInput(msgspec.Struct, frozen=True, kw_only=True):
    """What a model has answered to a row. `response` is `text` with the reasoning before it; label
    and prompt are as the row has them."""

    text: str
    response: str
    label: Any
    prompt: Any
    task: dict[str, Any]
    is_cut: bool = False
