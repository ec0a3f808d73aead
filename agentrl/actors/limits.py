"""Budgets of an episode: what the framework allows, and what is left of it. Pure."""

import msgspec

from agentrl.errors import PromptTooLongError
from agentrl.types import EpisodeAssignment
from agentrl.wire.frames import MAX_MESSAGE_BYTES

__all__ = ["MAX_BYTES", "Budget", "Limits", "prompt_too_long"]

#: Of all columns in one report, with room for the report itself.
MAX_BYTES = MAX_MESSAGE_BYTES - 2**20


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """`max_context` counts prompt and response tokens together, `max_prompt` the first prompt,
    `max_episode_tokens` those that are sampled in all turns;
    `max_bytes` the columns of all trajectories of an episode, each with its context. `evaluation`:
    those of an episode that is only scored, where they are others."""

    max_context: int
    max_prompt: int
    max_turns: int
    max_tool_calls: int | None
    max_episode_tokens: int | None = None
    episode_timeout_s: float
    max_bytes: int = MAX_BYTES
    evaluation: "Limits | None" = None

    @property
    def longest_context(self) -> int:
        """Tokens that the longest episode of any kind may have."""
        return max(self.max_context, self.evaluation.max_context if self.evaluation else 0)

    def of(self, assignment: EpisodeAssignment) -> "Limits":
        """Those that hold for one episode."""
        return self if assignment.evaluation is None else self.evaluation or self


def prompt_too_long(
    assignment: EpisodeAssignment, limits: Limits, found: str
) -> PromptTooLongError:
    """The first prompt does not fit; `found` says how long it is."""
    kind = "rollout" if assignment.evaluation is None else "eval"
    return PromptTooLongError(
        f"the first prompt of task {assignment.task.id} is too long: at most {limits.max_prompt} "
        f"tokens fit (--{kind}-max-prompt-len), and {found}"
    )


class Budget:
    """What one episode has left. `calls_left`: tool calls; None: any number."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.calls_left = limits.max_tool_calls

    def restore(self, calls_left: int | None) -> None:
        """Have spent what an earlier attempt has, of today's limit."""
        if calls_left is not None and self.calls_left is not None:
            self.calls_left = min(calls_left, self.calls_left)

    def room(self, num_tokens: int, max_new_tokens: int, num_sampled: int) -> int:
        """Tokens that the next turn may sample after `num_tokens` of context, of which the turns of
        the episode have sampled `num_sampled`; < 1 means none.

        One position stays free for the token that ends a turn cut by its length.
        """
        room = min(max_new_tokens, self._limits.max_context - num_tokens - 1)
        return min(room, self.tokens_left(num_sampled, room))

    def tokens_left(self, num_sampled: int, otherwise: int) -> int:
        """Tokens that the episode may still sample after `num_sampled`; `otherwise`: without a
        limit."""
        limit = self._limits.max_episode_tokens
        return otherwise if limit is None else limit - num_sampled

    def take_calls(self, count: int) -> bool:
        """Spend `count` tool calls; False when that is more than what is left."""
        if self.calls_left is None:
            return True
        if count > self.calls_left:
            return False
        self.calls_left -= count
        return True
