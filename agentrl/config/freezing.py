"""Which parameters are trained: `--only-train-params-name-list`, `--freeze-params-name-list`.

As in slime an expression is one of Python's, looked for anywhere in a name (`re.search`), and one
of the two lists is given. Names are Megatron's of the whole model, whatever its layout: layers and
experts are counted over all ranks.

    embedding.word_embeddings.weight
    decoder.layers.3.self_attention.linear_qkv.layer_norm_weight
    decoder.layers.3.mlp.experts.linear_fc1.weight17
    decoder.final_layernorm.weight
    output_layer.weight                                    not where the embedding is the head

A tied head is the embedding and has no name of its own. The critic goes by the same names, but for
its value head, which is always trained: it begins at 0, and a frozen one would learn nothing.
"""

import difflib
import re
from collections.abc import Collection, Iterable, Iterator

from agentrl.config.run import RunConfig

__all__ = ["about_freezing", "about_names", "expressions", "freezes", "name_of", "trains"]

_ONLY, _FREEZE = "--only-train-params-name-list", "--freeze-params-name-list"
_EXPERT = re.compile(r"\.experts\.experts\.(.*)\.(\d+)$")
_LAYER = re.compile(r"\.layers\.(\d+)\.")
_NUMBER = re.compile(r"(?<=\.layers\.)\d+|\d+$")
_MAX_NEAREST = 3


def freezes(config: RunConfig) -> bool:
    """Whether some parameters may be frozen."""
    return bool(config.only_train_params_name_list or config.freeze_params_name_list)


def expressions(config: RunConfig) -> list[str]:
    """Those of the list that is given."""
    return config.only_train_params_name_list or config.freeze_params_name_list


def trains(config: RunConfig, name: str) -> bool:
    """Whether the parameter of that name is trained."""
    is_named = any(re.search(expression, name) for expression in expressions(config))
    return is_named if config.only_train_params_name_list else not is_named


def name_of(key: str) -> str:
    """The name of a parameter, from that of its whole tensor in a checkpoint, which for an expert
    ends with its number."""
    return _EXPERT.sub(r".experts.\1\2", key)


def about_freezing(config: RunConfig) -> Iterator[str]:
    """What the lists themselves make impossible."""
    only, frozen = config.only_train_params_name_list, config.freeze_params_name_list
    if only and frozen:
        yield (
            f"{_ONLY} {' '.join(only)} and {_FREEZE} {' '.join(frozen)}: one of the two says which "
            "parameters are trained; leave the other out"
        )
    for flag, given in ((_ONLY, only), (_FREEZE, frozen)):
        for expression in given:
            try:
                re.compile(expression)
            except re.error as error:
                yield f"{flag} {expression!r} is no regular expression of Python's: {error}"


def about_names(config: RunConfig, names: Collection[str], whose: str) -> Iterator[str]:
    """What the lists say that a model (`whose`) of these parameters cannot do: an expression that
    is in no name, and no parameter left to train."""
    flag = _ONLY if config.only_train_params_name_list else _FREEZE
    missed = [each for each in expressions(config) if not any(re.search(each, n) for n in names)]
    for expression in missed:
        yield (
            f"{flag} {expression!r} is in no parameter's name of {whose}{_layers(names)}; the "
            f"nearest names are {', '.join(_nearest(expression, names))}"
        )
    if not missed and freezes(config) and not any(trains(config, name) for name in names):
        yield (
            f"{flag} {' '.join(expressions(config))} leaves none of {len(names)} parameters of "
            f"{whose} to train; --eval-only scores a model as it is"
        )


def _layers(names: Iterable[str]) -> str:
    layers = [int(found[1]) for name in names if (found := _LAYER.search(name))]
    return f" (layers {min(layers)} to {max(layers)})" if layers else ""


def _nearest(expression: str, names: Iterable[str]) -> list[str]:
    """Names whose parts are likest to an expression; of those that differ in numbers, the first."""
    kinds: dict[str, str] = {}
    for name in names:
        kinds.setdefault(_NUMBER.sub("0", name), name)
    matcher = difflib.SequenceMatcher(None, b=expression)
    likeness: dict[str, float] = {}
    for kind, name in kinds.items():
        for part in _parts(kind):
            matcher.set_seq1(part)
            likeness[name] = max(likeness.get(name, 0.0), matcher.ratio())
    return sorted(likeness, key=lambda name: -likeness[name])[:_MAX_NEAREST]


def _parts(name: str) -> Iterator[str]:
    """All runs of words of a name."""
    words = name.split(".")
    for first in range(len(words)):
        for last in range(first, len(words)):
            yield ".".join(words[first : last + 1])
