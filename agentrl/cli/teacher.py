"""Before the start: whether the teacher has the vocabulary of the policy, and a server of
`--rm-url` is there and has its context.

A teacher in the learner's ranks is compared word by word, where its folder has a tokenizer. A
server is compared by what it does: it makes tokens of a text in which many words of the policy's
vocabulary stand, and all of its control tokens. One without a tokenizer says where its model lies;
where that can be read here, its tokenizer does the same.
"""

from itertools import zip_longest
from pathlib import Path

import anyio

from agentrl.cluster.spec import read_model_facts
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError, EngineError
from agentrl.model_dir import TOKENIZER
from agentrl.paths import kind_of
from agentrl.serving.control import EngineControl
from agentrl.serving.http_control import EngineRefusedError
from agentrl.serving.teacher import server_of
from agentrl.tokens.vocab import Vocab
from agentrl.types import EngineAddress
from agentrl.visible import shown_url

__all__ = ["ask_teacher", "check_teacher"]

#: Seconds that the server may take for each answer.
_ASK_S = 30.0
#: Words of the vocabulary that stand in the text, spread over its ids.
_NUM_WORDS = 2000
#: Tokens of its context, at most, that a server keeps from a prompt.
_KEPT = 16


def check_teacher(config: RunConfig, *, dry_run: bool = False) -> list[str]:
    """Notes for the user. Raises ConfigError for a teacher that cannot teach this policy. For a dry
    run a server need not be there; a `--rm-url` that is no address is refused elsewhere."""
    if config.use_opd and not config.has_served_teacher:
        return _check_own(config)
    if not config.has_served_teacher or not (config.rm_url or "").startswith("http"):
        return []
    return anyio.run(ask_teacher, config, dry_run)


def _check_own(config: RunConfig) -> list[str]:
    """A teacher in the learner's ranks: every word of the policy has the same id there."""
    place, origin = config.opd_teacher_load, Path(str(config.hf_checkpoint))
    if place is None or kind_of(origin / TOKENIZER) != "a file":  # told already
        return []
    shown = f"--opd-teacher-load {place}"
    if kind_of(Path(place, TOKENIZER)) != "a file":
        note = f"{shown}: no tokenizer lies there, so whether the teacher's vocabulary is that of "
        return [f"{note}--hf-checkpoint {origin} was not looked at"]
    ours, theirs = Vocab.from_file(origin).ids(), Vocab.from_file(place).ids()
    others = sorted((id_, word) for word, id_ in ours.items() if theirs.get(word) != id_)
    if not others:
        return []
    id_, word = others[0]
    of_teacher = f"{theirs[word]} of the teacher" if word in theirs else "none of the teacher"
    raise ConfigError(
        f"{shown}: the teacher has another vocabulary than --hf-checkpoint {origin}: {len(others)} "
        f"words differ; {word!r} is token {id_} of the policy and {of_teacher}. A teacher tells of "
        "its own tokens alone: take one of the policy's family"
    )


async def ask_teacher(config: RunConfig, dry_run: bool = False) -> list[str]:
    """As `check_teacher`, of a run that has a teacher's address."""
    url, shown = server_of(str(config.rm_url)), shown_url(str(config.rm_url))
    control = EngineControl(EngineAddress("the teacher", url), timeout_s=_ASK_S)
    try:
        async with control:
            info = await control.info()
            # What it reads is to be shorter than the figure that it gives.
            notes = _check_context(config, shown, info.max_input_tokens - 1)
            model = str(info.model["model_path"])
            return notes + await _check_vocabulary(config, shown, control, model)
    except EngineError as error:
        if dry_run:
            return [f"--rm-url {shown}: not checked, and a run needs it: {error}"]
        raise ConfigError(
            f"--rm-url {shown}: {error}; start the teacher first, with `python -m "
            "sglang.launch_server --model-path MODEL --port PORT`"
        ) from error


def _check_context(config: RunConfig, shown: str, most: int) -> list[str]:
    """The teacher reads whole episodes. Without a flag that bounds these, the policy's own context
    does; a server of the same context keeps some tokens of it, and so few are noted."""
    given = config.rollout_max_context_len
    longest = read_model_facts(Path(str(config.hf_checkpoint)), given).max_context
    if longest <= most:
        return []
    bound = "the context of --hf-checkpoint" if given is None else "--rollout-max-context-len"
    short = (
        f"--rm-url {shown}: the teacher reads at most {most} tokens, and an episode may have "
        f"{longest} ({bound})"
    )
    if given is None and longest - most <= _KEPT:
        return [f"{short}; with --rollout-max-context-len {most} none has more"]
    raise ConfigError(
        f"{short}; start it with a longer --context-length, or give --rollout-max-context-len "
        f"{most}"
    )


async def _check_vocabulary(
    config: RunConfig, shown: str, control: EngineControl, model: str
) -> list[str]:
    vocab = Vocab.from_file(str(config.hf_checkpoint))
    size = read_model_facts(Path(str(config.hf_checkpoint)), None).vocab_size
    words = [vocab.decode([id_]) for id_ in range(0, size, max(1, size // _NUM_WORDS))]
    probe = "".join([*(f"{word} " for word in words if word), *vocab.control])
    theirs = await _tokens(control, probe, Path(model))
    if theirs is None:
        note = f"--rm-url {shown}: it has no tokenizer, and {model} cannot be read here: whether "
        return [f"{note}its vocabulary is that of {config.hf_checkpoint} was not looked at"]
    ours = vocab.encode_trusted(probe)
    if theirs == ours:
        return []
    pairs = zip_longest(ours, theirs)
    own, other = next(pair for pair in pairs if pair[0] != pair[1])
    word = "the end" if own is None else f"{vocab.decode([own])!r}"
    raise ConfigError(
        f"--rm-url {shown}: the teacher {model} has another vocabulary than --hf-checkpoint "
        f"{config.hf_checkpoint}: where the policy reads {word} (token {own}), it reads token "
        f"{other}. A teacher tells of its own tokens alone: take one of the policy's family"
    )


async def _tokens(control: EngineControl, text: str, model: Path) -> list[int] | None:
    """What the teacher reads in the text; None where that cannot be known here."""
    try:
        return await control.tokens_of(text)
    except EngineRefusedError:
        is_here = kind_of(model / "tokenizer.json") == "a file"
    return Vocab.from_file(model).encode_trusted(text) if is_here else None
