"""How turns are sampled and how long they may be: those of training, and those of evaluations.

An evaluation takes from training what it is not told otherwise (`--eval-*`). Engines return the
probabilities of all tokens to training alone: evaluations may cut them off.
"""

from collections.abc import Iterator

from agentrl.config.run import RunConfig
from agentrl.types import SamplingParams

__all__ = ["about_sampling", "evaluation_turns", "notes_on_sampling", "training_turns"]


def training_turns(config: RunConfig) -> SamplingParams:
    """How turns of training are sampled."""
    return SamplingParams(
        temperature=config.rollout_temperature,
        top_p=config.rollout_top_p,
        top_k=config.rollout_top_k,
        max_new_tokens=config.rollout_max_response_len,
        stop_token_ids=tuple(config.rollout_stop_token_ids),
        stop=tuple(config.rollout_stop),
    )


def evaluation_turns(config: RunConfig) -> SamplingParams:
    """How turns of evaluations are sampled."""
    training = training_turns(config)
    return SamplingParams(
        temperature=config.evaluation_temperature,
        top_p=training.top_p if config.eval_top_p is None else config.eval_top_p,
        top_k=training.top_k if config.eval_top_k is None else config.eval_top_k,
        max_new_tokens=config.eval_max_response_len or training.max_new_tokens,
        stop_token_ids=training.stop_token_ids,
        stop=training.stop,
        min_p=config.eval_min_p,
    )


def about_sampling(config: RunConfig) -> Iterator[str]:
    """What no engine can sample, or no learner train on."""
    yield from _about_stops(config)
    top_p, top_k = config.rollout_top_p, config.rollout_top_k
    if config.mode == "policy" and (top_p < 1 or top_k != -1):
        yield (
            f"--rollout-top-p {top_p:g} and --rollout-top-k {top_k}: training needs the "
            "probabilities of all tokens, and engines return none for those that were cut off; use "
            "1 and -1 (--rollout-temperature is free, and so are --eval-top-p and --eval-top-k)"
        )
    elif evaluation_turns(config).top_k == 0:
        flag = "--rollout-top-k" if config.eval_top_k is None else "--eval-top-k"
        yield f"{flag} 0 leaves no token to choose from; give 1 or more, or -1 for all of them"


def _about_stops(config: RunConfig) -> Iterator[str]:
    if "" in config.rollout_stop:
        yield "--rollout-stop '': every text holds the empty string; leave it out"
    if config.rollout_stop and config.sglang.get("skip_tokenizer_init"):
        yield (
            "--rollout-stop with --sglang-skip-tokenizer-init: an engine looks for strings with "
            "its tokenizer; leave one of the two out"
        )


def notes_on_sampling(config: RunConfig) -> Iterator[str]:
    """What a user may not expect: of evaluations, and of training on the likeliest turns alone."""
    if config.mode == "policy" and config.rollout_temperature == 0 and not config.loads_rollouts:
        yield (
            "--rollout-temperature 0: each turn is the likeliest, so episodes of a group differ "
            "only where their environment does, and equal rewards have no advantage over their "
            "mean (grpo): little or nothing is learnt; give 1"
        )
    samples = config.n_samples_per_eval_prompt
    if samples > 1 and config.evaluation_temperature == 0:
        flag = "rollout" if config.eval_temperature is None else "eval"
        yield (
            f"--n-samples-per-eval-prompt {samples} at --{flag}-temperature 0: the {samples} "
            "answers to a task are equal, and their mean is that of one; give --eval-temperature"
        )
