"""Lengths in tokens: those that fit no model, engine or turn are refused, and what a user should
know of episodes that are longer than a micro-batch."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from agentrl.config.model import ModelSummary
from agentrl.config.plan import in_units
from agentrl.config.run import RunConfig

__all__ = ["about_lengths", "notes_on_lengths"]

_SCALES = {"": 1, "k": 10**3, "M": 10**6, "Ki": 2**10, "Mi": 2**20}
_LENGTH = re.compile(r"(\d+(?:\.\d+)?)(|k|M|Ki|Mi)")


def about_lengths(config: RunConfig, model: ModelSummary) -> Iterator[str]:
    """What does not fit: contexts into the model and its engines, turns and prompts into them."""
    limit = _Length("the model's max_position_embeddings", model.max_context)
    training = _Length("--rollout-max-context-len", config.rollout_max_context_len)
    evaluation = _Length("--eval-max-context-len", config.eval_max_context_len)
    for given in (training, evaluation):
        yield from _about_context(given, limit)
    evaluation = training if evaluation.tokens is None else evaluation
    for given in dict.fromkeys([evaluation] if config.mode == "eval" else [training, evaluation]):
        yield from _about_engines(config, given, limit)
    if config.mode == "policy":
        prompt = _Length("--rollout-max-prompt-len", config.rollout_max_prompt_len)
        yield from _about_room(_shorter(training, limit), prompt)
    if config.has_env:
        prompt = _Length("--eval-max-prompt-len", config.eval_max_prompt_len)
        yield from _about_room(_shorter(evaluation, limit), prompt)


class _Length(NamedTuple):
    """Tokens, and what says so; None: nothing does."""

    flag: str
    tokens: int | None


def _shorter(one: _Length, other: _Length) -> _Length:
    if one.tokens is None or other.tokens is None:
        return other if one.tokens is None else one
    return min(one, other, key=lambda length: length.tokens or 0)


def _about_context(given: _Length, model: _Length) -> Iterator[str]:
    if given.tokens is not None and model.tokens is not None and given.tokens > model.tokens:
        yield (
            f"{given.flag} {given.tokens} is more than {model.flag} {model.tokens}; lower it to "
            f"{model.tokens}"
        )


def _about_engines(config: RunConfig, given: _Length, model: _Length) -> Iterator[str]:
    engine, (flag, tokens) = _tokens(config.sglang.get("context_length")), _shorter(given, model)
    if engine is not None and tokens is not None and engine < tokens:
        yield (
            f"--sglang-context-length {engine} is less than {flag} {tokens}: engines would refuse "
            f"turns that the run sends them; give {given.flag} {engine}"
        )


def _about_room(context: _Length, prompt: _Length) -> Iterator[str]:
    (flag, tokens), (limit, most) = prompt, context
    if tokens is not None and most is not None and tokens >= most:
        yield (
            f"{flag} {tokens} leaves no room for a turn within {limit} {most}; lower it below "
            f"{most}"
        )


def _tokens(value: object) -> int | None:
    """A length as SGLang reads it: 4096, 64k (64 x 1000) or 64Ki (64 x 1024). None: no length."""
    found = _LENGTH.fullmatch(str(value))
    if found is None:
        return None
    number, suffix = found.groups()
    return int(float(number) * _SCALES[suffix])


def notes_on_lengths(config: RunConfig, model: ModelSummary) -> list[str]:
    """Lines for the user: nothing here keeps a run from starting."""
    return [*_on_turns(config, model), *_on_micro_batches(config, model)]


def _on_turns(config: RunConfig, model: ModelSummary) -> Iterator[str]:
    """A turn is cut to what its prompt leaves of the context, as in slime."""
    limit = _Length("the model's max_position_embeddings", model.max_context)
    training = _Length("--rollout-max-context-len", config.rollout_max_context_len)
    own = _Length("--eval-max-context-len", config.eval_max_context_len)
    sampled = _Length("--rollout-max-response-len", config.rollout_max_response_len)
    turns = [] if config.mode != "policy" else [(sampled, _shorter(training, limit))]
    if config.has_env:
        given = _Length("--eval-max-response-len", config.eval_max_response_len)
        given = sampled if given.tokens is None and config.mode == "eval" else given
        turns.append((given, _shorter(training if own.tokens is None else own, limit)))
    for (flag, tokens), (context, most) in turns:
        if tokens is not None and most is not None and tokens > most:
            yield (
                f"{flag} {tokens}: a turn gets what its prompt leaves of {context} {most}, at most "
                f"{most - 1}"
            )


def _on_micro_batches(config: RunConfig, model: ModelSummary) -> list[str]:
    """An episode may be longer than a micro-batch."""
    limits = {
        "--rollout-max-context-len": config.rollout_max_context_len,
        "the model's max_position_embeddings": model.max_context,
    }
    known = [(length, name) for name, length in limits.items() if length is not None]
    if not known:
        return []
    longest, name = min(known)
    if longest <= config.micro_batch_tokens:
        return []
    ranks = config.context_parallel_size
    by = f" x --context-parallel-size {ranks} = {config.micro_batch_tokens}" if ranks > 1 else ""
    note = (
        f"an episode of up to {longest} tokens ({name}) may be longer than a micro-batch "
        f"(--max-tokens-per-gpu {config.max_tokens_per_gpu}{by} tokens): it is then one of its own"
        f"{_memory(config, model, longest)}. Lower --rollout-max-context-len if a rank has no room "
        "for that"
    )
    return [note]


def _memory(config: RunConfig, model: ModelSummary, tokens: int) -> str:
    """What the logits of a sequence and their gradient take, both in 16 bits."""
    if model.vocab_size is None:
        return ""
    shares = config.context_parallel_size * config.megatron.get("tensor_model_parallel_size", 1)
    needed = 2 * 2 * tokens * model.vocab_size // shares
    return (
        f"; beside its activations, logits and their gradient take up to {in_units(needed)} on a "
        "rank in 16 bits, twice that in 32"
    )
