"""How the layers of a model are shared out to the stages of a pipeline, as Megatron's flags say.

Without a flag the stages are equal. `--decoder-first-pipeline-num-layers` and
`--decoder-last-pipeline-num-layers` give the first and the last stage a number of their own; with
`--account-for-embedding-in-pipeline-split` and `--account-for-loss-in-pipeline-split` the embedding
and the loss count as a layer; `--pipeline-model-parallel-layout` spells out every stage.
Refused, before a process group exists: two of these ways at once, stages that do not come out
even, and a stage between the first and the last that has no layer.
"""

import re

from agentrl.config.megatron import MegatronSettings, flag
from agentrl.errors import ConfigError

__all__ = ["layers_of_stages"]

_SIZES = ("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers")
_ACCOUNTS = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")
_LAYOUT = "pipeline_model_parallel_layout"
#: `(tt|)*3` and then `t*3`, as Megatron unrolls them.
_REPEATED = (r"\(([^()]*)\)\*(\d{1,3})", r"([^*])\*(\d{1,4})")


def layers_of_stages(num_layers: int, settings: MegatronSettings) -> list[int]:
    """The number of layers of each stage. Raises ConfigError with the flags and the numbers."""
    given = [name for name in (*_SIZES, *_ACCOUNTS, _LAYOUT) if getattr(settings, name)]
    ranks = settings.pipeline_model_parallel_size
    if given and ranks == 1:
        raise ConfigError(
            f"{_flags(given)} shares layers out to the stages of a pipeline, and "
            "--pipeline-model-parallel-size 1 is one stage; leave it out"
        )
    ways = [way for way in (_SIZES, _ACCOUNTS, (_LAYOUT,)) if set(way) & set(given)]
    if len(ways) > 1:
        raise ConfigError(f"{_flags(given)} are different ways to share layers out; give one")
    if _LAYOUT in given:
        sizes = _spelled_out(num_layers, ranks, str(settings.pipeline_model_parallel_layout))
    elif given and given[0] in _SIZES:
        sizes = _with_ends(num_layers, ranks, settings)
    else:
        sizes = _with_accounts(num_layers, ranks, settings)
    if 0 in sizes[1:-1]:
        raise ConfigError(
            f"stages of {_joined(sizes)} layers: one between the first and the last has none; "
            f"lower {flag('pipeline_model_parallel_size')} {ranks}"
        )
    return sizes


def _with_ends(num_layers: int, ranks: int, settings: MegatronSettings) -> list[int]:
    first, last = (getattr(settings, name) for name in _SIZES)
    middle = ranks - (first is not None) - (last is not None)
    rest = num_layers - (first or 0) - (last or 0)
    if rest < middle or (rest % middle if middle else rest):
        ends = [f"{flag(n)} {getattr(settings, n)}" for n in _SIZES if getattr(settings, n)]
        raise ConfigError(
            f"{num_layers} layers with {' and '.join(ends)} leave {rest} for the other {middle} "
            f"of {ranks} stages, which must share them equally"
        )
    sizes = [rest // middle] * middle if middle else []
    return [*([first] if first else []), *sizes, *([last] if last else [])]


def _with_accounts(num_layers: int, ranks: int, settings: MegatronSettings) -> list[int]:
    first, last = (getattr(settings, name) for name in _ACCOUNTS)
    if (num_layers + first + last) % ranks:
        counted = " and ".join(what for what, on in (("embedding", first), ("loss", last)) if on)
        raise ConfigError(
            f"{num_layers} layers{f' with {counted} as one each' if counted else ''} cannot be "
            f"divided by {flag('pipeline_model_parallel_size')} {ranks}; "
            f"{flag(_SIZES[0])} or {flag(_SIZES[1])} gives one stage another number"
        )
    sizes = [(num_layers + first + last) // ranks] * ranks
    sizes[0] -= first
    sizes[-1] -= last
    return sizes


def _spelled_out(num_layers: int, ranks: int, layout: str) -> list[int]:
    stages = _unrolled(layout).split("|")

    def refused(why: str) -> ConfigError:
        return ConfigError(f"{flag(_LAYOUT)} {layout!r} {why}")

    if len(stages) != ranks:
        raise refused(
            f"has {len(stages)} stages for {flag('pipeline_model_parallel_size')} {ranks}"
        )
    whole = "".join(stages)
    if "m" in whole:
        raise refused("has a layer that predicts further tokens (m), and none is trained")
    if not re.fullmatch("Et*L", whole) or stages[0][:1] != "E" or stages[-1][-1:] != "L":
        raise refused(
            "must be the embedding (E) in the first stage, layers (t) and the loss (L) in the "
            "last, with | between stages"
        )
    if (layers := whole.count("t")) != num_layers:
        raise refused(f"has {layers} layers and the model {num_layers}")
    return [stage.count("t") for stage in stages]


def _unrolled(layout: str) -> str:
    layout = layout.replace(",", "")
    for pattern in _REPEATED:
        layout = re.sub(pattern, lambda found: found[1] * int(found[2]), layout)
    return layout


def _flags(names: list[str]) -> str:
    return " and ".join(map(flag, names))


def _joined(sizes: list[int]) -> str:
    return ", ".join(map(str, sizes))
