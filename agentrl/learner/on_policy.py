"""How engine and learner agree about on-policy tokens, over as many of them as it takes to tell.

    iterations add tokens -> enough -> judged, and begun anew

A handful says little: one odd token of seven looks like another model. So tokens of an iteration
wait for those of the next, and a run that goes on is judged again and again.
"""

import math

import msgspec

from agentrl.learner.metrics import LogprobDiff

__all__ = ["MIN_TOKENS", "Agreement", "OnPolicyTokens"]

#: On-policy tokens over which engine and learner are compared.
MIN_TOKENS = 256


class Agreement(msgspec.Struct, frozen=True):
    """|engine - learner| log-probability over enough tokens, and the KL from engine to learner."""

    diff: LogprobDiff
    kl: float


class OnPolicyTokens:
    """On-policy tokens since the last judgement."""

    def __init__(self) -> None:
        self._num_tokens = 0
        self._diff_sum = self._kl_sum = self._maximum = 0.0

    def add(self, diff: LogprobDiff, kl: float) -> Agreement | None:
        """Take in those of one iteration; what all of them say, once they are enough. A number that
        is none needs no others."""
        if diff.num_tokens:
            self._num_tokens += diff.num_tokens
            self._diff_sum += diff.mean * diff.num_tokens
            self._kl_sum += kl * diff.num_tokens
            self._maximum = max(self._maximum, diff.maximum)
        is_number = math.isfinite(self._diff_sum + self._kl_sum)
        if self._num_tokens == 0 or (self._num_tokens < MIN_TOKENS and is_number):
            return None
        count = self._num_tokens
        mean, kl = self._diff_sum / count, self._kl_sum / count
        agreement = Agreement(LogprobDiff(mean, self._maximum, count), kl)
        self._num_tokens = 0
        self._diff_sum = self._kl_sum = self._maximum = 0.0
        return agreement
