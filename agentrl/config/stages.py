"""How the layers of a model are shared out to the stages of a pipeline, as Megatron's flags say.

Without a flag the stages are equal. `--decoder-first-pipeline-num-layers` and
`--decoder-last-pipeline-num-layers` give the first and the last stage a number of their own; with
`--account-for-embedding-in-pipeline-split` and `--account-for-loss-in-pipeline-split` the embedding
and the loss count as a layer; `--pipeline-model-parallel-layout` spells out every stage.

A rank has one stage, or several that are interleaved: stage s is on rank s modulo the number of
ranks. How many says `--num-virtual-stages-per-pipeline-rank`, or
`--num-layers-per-virtual-pipeline-stage`, or the number of stages that are spelled out.
Refused, before a process group exists: two of these ways at once, stages that do not come out
even, and a stage between the first and the last that has no layer.
"""

import re

from agentrl.config.megatron import MegatronSettings, flag
from agentrl.errors import ConfigError

__all__ = ["layers_of_stages", "stages_of_a_rank"]

_SIZES = ("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers")
_ACCOUNTS = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")
_LAYOUT = "pipeline_model_parallel_layout"
_INTERLEAVED = ("num_virtual_stages_per_pipeline_rank", "num_layers_per_virtual_pipeline_stage")
#: `(tt|)*3` and then `t*3`, as Megatron unrolls them.
_REPEATED = (r"\(([^()]*)\)\*(\d{1,3})", r"([^*])\*(\d{1,4})")


def layers_of_stages(num_layers: int, settings: MegatronSettings) -> list[int]:
    """The number of layers of each stage. Raises ConfigError with the flags and the numbers."""
    given = [n for n in (*_SIZES, *_ACCOUNTS, _LAYOUT, *_INTERLEAVED) if getattr(settings, n)]
    ranks = settings.pipeline_model_parallel_size
    if given and ranks == 1:
        raise ConfigError(
            f"{_flags(given)} shares layers out to the stages of a pipeline, and "
            "--pipeline-model-parallel-size 1 is one stage; leave it out"
        )
    ways = [way for way in (_SIZES, _ACCOUNTS, (_LAYOUT,)) if set(way) & set(given)]
    shares = [name for name in given if name not in _INTERLEAVED]
    if len(ways) > 1:
        raise ConfigError(f"{_flags(shares)} are different ways to share layers out; give one")
    interleaved = [name for name in _INTERLEAVED if name in given]
    if len(interleaved) > 1 or (interleaved and _LAYOUT in given):
        told = [*interleaved, *([_LAYOUT] if _LAYOUT in given else [])]
        raise ConfigError(f"{_flags(told)} each say how many stages a rank has; give one")
    if _LAYOUT in given:
        sizes = _spelled_out(num_layers, ranks, str(settings.pipeline_model_parallel_layout))
    else:
        sizes = _shared_out(num_layers, settings, shares)
    if 0 in sizes[1:-1]:
        raise ConfigError(
            f"stages of {_joined(sizes)} layers: one between the first and the last has none; "
            f"lower {flag('pipeline_model_parallel_size')} {ranks}"
        )
    return sizes


def stages_of_a_rank(num_layers: int, settings: MegatronSettings) -> int:
    """How many stages of the pipeline each of its ranks has; raises as `layers_of_stages`."""
    return len(layers_of_stages(num_layers, settings)) // settings.pipeline_model_parallel_size


def _shared_out(num_layers: int, settings: MegatronSettings, shares: list[str]) -> list[int]:
    """Sizes of the stages: those of the ranks, each cut into equal stages."""
    ranks = settings.pipeline_model_parallel_size
    has_ends = bool(set(shares) & set(_SIZES))
    accounts = [0] * ranks
    if not has_ends:
        accounts[0] += settings.account_for_embedding_in_pipeline_split
        accounts[-1] += settings.account_for_loss_in_pipeline_split
    share = _with_ends if has_ends else _with_accounts
    of_ranks = share(num_layers, ranks, settings)
    counted = [size + more for size, more in zip(of_ranks, accounts, strict=True)]
    number = _number_on_a_rank(counted, settings, shares)
    if any(size % number for size in counted):
        raise ConfigError(
            f"ranks with {_joined(counted)} layers cannot have {number} equal stages each "
            f"({flag(_INTERLEAVED[0])})"
        )
    sizes = [size // number for _ in range(number) for size in counted]
    sizes[0] -= accounts[0]
    sizes[-1] -= accounts[-1]
    return sizes


def _number_on_a_rank(counted: list[int], settings: MegatronSettings, shares: list[str]) -> int:
    if (size := settings.num_layers_per_virtual_pipeline_stage) is None:
        return settings.num_virtual_stages_per_pipeline_rank or 1
    if set(shares) & set(_SIZES):
        raise ConfigError(
            f"{flag(_INTERLEAVED[1])} wants equal ranks, not {_flags(shares)}; "
            f"give {flag(_INTERLEAVED[0])}"
        )
    if counted[0] % size:
        raise ConfigError(
            f"{flag(_INTERLEAVED[1])} {size} does not divide the {counted[0]} layers of a rank"
        )
    return counted[0] // size


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

    if len(stages) % ranks:
        raise refused(
            f"has {len(stages)} stages for {flag('pipeline_model_parallel_size')} {ranks}, "
            "which each rank must have as many of"
        )
    whole = "".join(stages)
    if "m" in whole:
        raise refused("has a layer that predicts further tokens (m), which no layout places here")
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
