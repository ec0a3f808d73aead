"""`RewardInput`: what a reward may look at."""

from collections.abc import Sequence
from typing import Any

import msgspec

__all__ = ["RewardInput"]


class RewardInput(msgspec.Struct, frozen=True, kw_only=True):
    """What a model has answered to a row. `response` is `text` with the reasoning before it; label
    and prompt are as the row has them. `output_ids` are what was sampled in the last turn, after
    `prompt_ids`; None where text alone is known, as of the answers of a group. These have the
    number of tokens that the episode `sampled`."""

    text: str
    response: str
    label: Any
    prompt: Any
    task: dict[str, Any]
    is_cut: bool = False
    prompt_ids: Sequence[int] = ()
    output_ids: Sequence[int] | None = None
    sampled: int | None = None
