"""Flags of slime whose answer depends on what else is given: the rules that `answers.toml` names.

A rule sees the values of a run before they are checked, and which of them somebody gave. It tells
that the flag is already so, sets what it means here, or refuses it with the numbers.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from agentrl.config import answers
from agentrl.config.answers import Asked
from agentrl.config.facts import mode_of
from agentrl.config.fields import own_fields, value_in
from agentrl.config.places import checkpoints_of
from agentrl.shipped import CHAT_FORMATS

__all__ = ["RULES", "Settled", "settle"]

Values = Mapping[str, Any]

_COUNT = re.compile(r"[1-9][0-9]{0,17}")
#: Slime's first checkpoint is that of iteration 0.
_ITERATION = re.compile(r"0|[1-9][0-9]{0,17}")
_SFT = "slime.rollout.sft_rollout."
_PLAIN = "slime.rollout.sglang_rollout.generate_rollout"
_FULLY_ASYNC = "slime.rollout.fully_async_rollout.generate_rollout_fully_async"
_AHEAD = (
    "train_async.py generates while it trains and pushes; --async-buffer-size says how far ahead"
)
_OTHER = (
    "agentrl has no such function of slime's; give one of your own (docs/hooks.md), or leave this "
    "out: engines play the episodes of a task"
)
#: Kinds of slime's loss masks for which a format of another name is here, and what that does.
_MASKS = {
    "distill_qwen": (
        "give --chat-format deepseek-r1 in its place: it writes turns of DeepSeek-R1 and of the "
        "models distilled from it, and trains each turn of a dialogue with its thought and its end "
        "(slime: the text of the last message alone)"
    ),
}
_IN_TURN = (
    "this run generates and trains in turn; run train_async.py, with --async-buffer-size and "
    "--max-staleness of 1 or more"
)


class Settled(msgspec.Struct, frozen=True):
    """What rules say: values that they set, with the flags that did, and lines for the user."""

    values: dict[str, Any] = {}
    said: dict[str, str] = {}
    notes: list[str] = []
    refused: list[str] = []


def settle(asked: Iterable[Asked], values: Values, said: Mapping[str, str]) -> Settled:
    """The answers to those of `asked` that a rule answers. `values` lack defaults; `said` are the
    fields that somebody gave."""
    last = {one.name: one for one in asked if one.row.rule and not answers.refusals([one])}
    found = [RULES[one.row.rule](one, values, said) for one in last.values()]
    return Settled(
        {name: value for answer in found for name, value in answer.values.items()},
        {name: text for answer in found for name, text in answer.said.items()},
        [line for answer in found for line in answer.notes],
        [line for answer in found for line in answer.refused],
    )


def _is_so(one: Asked, why: str) -> Settled:
    return Settled(notes=[f"{one.text}: already so: {why}"])


def _refused(one: Asked, why: str) -> Settled:
    return Settled(refused=[f"{one.text}: {why}"])


def _batch(one: Asked, values: Values, said: Mapping[str, str]) -> Settled:
    """Slime's batch of a step: the episodes of an iteration by its number of steps."""
    groups, episodes = (value_in(values, n) for n in ("rollout_batch_size", "n_samples_per_prompt"))
    iteration = groups * episodes
    product = f"--rollout-batch-size {groups} x --n-samples-per-prompt {episodes} = {iteration}"
    if not _COUNT.fullmatch(one.words[0]):
        return _refused(one, "it is a number of episodes, 1 or more")
    size = int(one.words[0])
    if iteration % size == 0 and size % episodes:
        return _refused(
            one,
            f"{product} episodes in steps of {size} would cut groups of {episodes}, and a step "
            f"takes whole groups; make it a multiple of {episodes} that divides {iteration}",
        )
    if "num_steps_per_rollout" in said:
        steps = value_in(values, "num_steps_per_rollout")
        if size * steps == iteration:
            return _is_so(one, f"{product} episodes in --num-steps-per-rollout {steps} steps")
        return _refused(
            one,
            f"{product} episodes are not {steps} steps (--num-steps-per-rollout) of {size}; leave "
            "one of the two out",
        )
    if iteration % size:
        return _refused(
            one,
            f"{product} episodes cannot be shared by steps of {size}; make it a divisor of "
            f"{iteration}",
        )
    steps = iteration // size
    note = f"{one.text}: {product} episodes make --num-steps-per-rollout {steps}"
    field = "num_steps_per_rollout"
    return Settled({field: steps}, {field: one.text}, [note])


def _supervised(one: Asked, values: Values, said: Mapping[str, str]) -> Settled:
    """What slime's scripts of supervised training pass, and every such run is here."""
    if mode_of(values) == "supervised":
        return _is_so(one, one.row.says)
    return _refused(one, one.row.otherwise)


def _train_only(one: Asked, values: Values, said: Mapping[str, str]) -> Settled:
    """What has no engines here by another flag."""
    if values.get("load_debug_rollout_data") is not None:
        return _is_so(one, "--load-debug-rollout-data starts no engines")
    return _supervised(one, values, said)


def _rollout(one: Asked, values: Values, said: Mapping[str, str]) -> Settled:
    """What slime's own rollout functions do, this program does by itself."""
    name = one.words[0]
    if name.startswith(_SFT) and mode_of(values) == "supervised":
        return _is_so(one, "--loss-type sft_loss imitates the dialogues of --prompt-data")
    if name.startswith(_SFT):
        return _refused(one, one.row.otherwise)
    if mode_of(values) != "supervised":
        if name == _PLAIN:
            return _is_so(one, "engines play the episodes of a task")
        if name == _FULLY_ASYNC:
            return _fully_async(one, values, said)
    return _refused(one, _OTHER)


def _evaluation(one: Asked, values: Values, said: Mapping[str, str]) -> Settled:
    """What slime's own function does with evaluation sets, a run does by itself."""
    if one.words[0] == _PLAIN:
        return _is_so(one, "engines play evaluation sets as they play episodes")
    return _refused(one, _OTHER)


def _fully_async(one: Asked, values: Values, said: Mapping[str, str]) -> Settled:
    """Generation that waits for neither training nor pushes: what train_async.py is for."""
    if 0 in (value_in(values, "async_buffer_size"), value_in(values, "max_staleness")):
        return _refused(one, _IN_TURN)
    return _is_so(one, _AHEAD)


def _loss_mask(one: Asked, values: Values, said: Mapping[str, str]) -> Settled:
    """Slime's kind of loss mask says how a dialogue is written as tokens: our chat format."""
    if mode_of(values) != "supervised":
        return _is_so(one, "a policy is trained on the tokens that it sampled; imitation reads it")
    template, written = value_in(values, "chat_template"), value_in(values, "chat_format")
    if template is not None:
        return _is_so(one, f"--chat-template {template} says which tokens are the assistant's")
    if told := _MASKS.get(one.words[0]):
        return _refused(one, told)
    meant = one.words[0].replace("_", "-")
    if meant == written:
        return _is_so(one, f"--chat-format {written} says which tokens are the assistant's")
    if meant not in CHAT_FORMATS.places:
        return _refused(
            one,
            f"no --chat-format has that name ({CHAT_FORMATS}); give one of them, or "
            "--chat-template own",
        )
    field = "chat_format"
    if field in said:
        return _refused(one, f"--chat-format is {written}; leave one of the two out")
    note = f"{one.text}: --chat-format {meant} says which tokens are the assistant's"
    return Settled({field: meant}, {field: one.text}, [note])


def _ckpt_step(one: Asked, values: Values, said: Mapping[str, str]) -> Settled:
    """Which of the checkpoints that lie there is begun with, ours or Megatron's."""
    name = one.name.removeprefix("--").replace("ckpt-step", "load").replace("-", "_")
    place = values.get(name)
    if place is None or not Path(place).is_dir():
        return _is_so(one, f"there is nothing at --{name.replace('_', '-')}")
    if not _ITERATION.fullmatch(one.words[0]):
        return _refused(one, "it is the number of an iteration, 0 or more")
    numbered = [f"{kind}_{int(one.words[0]):07d}" for kind in ("iteration", "iter")]
    if Path(place).name in numbered:
        return _is_so(one, f"that is {place}")
    for folder in (checkpoints_of(Path(place)) / numbered[0], Path(place, numbered[1])):
        if folder.is_dir():
            return Settled({name: str(folder)}, {name: one.text}, [f"{one.text}: {folder}"])
    return _refused(one, f"there is neither {' nor '.join(numbered)} in {place}")


def _critic_ranks(one: Asked, values: Values, said: Mapping[str, str]) -> Settled:
    """Policy and critic are in the same ranks: sizes that are the policy's say just that."""
    name = one.name.removeprefix("--").replace("-", "_").replace("critic", "actor")
    actors = value_in(values, name)
    if one.words[0] == str(actors):
        return _is_so(one, f"the critic is in the ranks of the policy ({own_fields()[name].flag})")
    return _refused(
        one,
        f"the critic is in the ranks of the policy, so that one checkpoint has both, and "
        f"{own_fields()[name].flag} is {actors}; make it {actors}, or leave it out",
    )


def _offload(one: Asked, values: Values, said: Mapping[str, str]) -> Settled:
    """Learner and engines give up their memory only where they share devices."""
    if value_in(values, "colocate"):
        return _is_so(one, one.row.says)
    return _refused(
        one,
        "learner and engines have devices of their own without --colocate, and keep what is on "
        "them (slime moves it to the host); give --colocate, or leave this out",
    )


RULES: dict[str, Callable[[Asked, Values, Mapping[str, str]], Settled]] = {
    "batch": _batch,
    "ckpt_step": _ckpt_step,
    "critic_ranks": _critic_ranks,
    "evaluation": _evaluation,
    "fully_async": _fully_async,
    "loss_mask": _loss_mask,
    "offload": _offload,
    "rollout": _rollout,
    "supervised": _supervised,
    "train_only": _train_only,
}
