"""The check that engine and learner hold the same model, made on the first iteration.

Tokens of age 0 were sampled by exactly the weights that the learner still holds, so the engine's
log-probability of such a token and the learner's must agree up to numerics.
"""

from agentrl.errors import HealthError

__all__ = ["MAX_LOGPROB_DIFF", "check_logprobs"]

#: Largest mean |engine - learner| log-probability of on-policy tokens. In float32 a sound pair
#: stays below 1e-4, in bfloat16 below 1e-2.
MAX_LOGPROB_DIFF = 1e-2


def check_logprobs(number: int, mean: float, maximum: float, num_tokens: int) -> None:
    """Raise HealthError when the mean difference over `num_tokens` tokens is too large."""
    if num_tokens == 0 or mean <= MAX_LOGPROB_DIFF:
        return
    raise HealthError(
        f"engine and learner disagree in iteration {number}: |engine - learner| log-probability of "
        f"{num_tokens} on-policy tokens is {mean:.3g} in the mean (limit {MAX_LOGPROB_DIFF:g}) and "
        f"{maximum:.3g} at most. Likely causes: the weights of the engine are not those of the "
        "learner (weight names, layout or a partial push), another sampling temperature on the two "
        "sides, another architecture setting (rope base, norm epsilon, tied embeddings), or a "
        "different tokenization. Compare one prompt on both sides before training further"
    )
