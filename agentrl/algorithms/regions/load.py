"""The trust regions that `--trust-region` names: `dppo`, `dppo:0.3`, `token:0.5:2`."""

from collections.abc import Sequence

from agentrl.algorithms.regions.base import Region
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.shipped import TRUST_REGIONS
from agentrl.user_code import Kind, hint, load

__all__ = ["load_regions"]


def _take(value: object) -> type[Region] | None:
    is_one = isinstance(value, type) and issubclass(value, Region) and hasattr(value, "bounds")
    return value if is_one else None  # type: ignore[return-value]


REGIONS: Kind[type[Region]] = Kind(
    group="agentrl.trust_regions",
    noun="trust region",
    must_be="a subclass of agentrl.algorithms.regions.base.Region with `bounds`",
    write="`class Mine(Region):` with `bounds`, `units` and `keeps`",
    take=_take,
    builtin=TRUST_REGIONS.places,
    flag="--trust-region",
)


def load_regions(cfg: RunConfig) -> tuple[Region, ...]:
    """In the order that they were named. Raises ConfigError."""
    named = [*cfg.trust_region, *([f"opsm:{cfg.opsm_delta!r}"] if cfg.use_opsm else [])]
    regions = tuple(_region(text) for text in named)
    kinds = [type(region) for region in regions]
    for kind, text in zip(kinds, named, strict=True):
        if kinds.count(kind) > 1:
            raise ConfigError(f"--trust-region {text}: named twice; keep one of the two")
    return regions


def _region(text: str) -> Region:
    name, *words = text.split(":")
    if name not in TRUST_REGIONS.places:
        raise ConfigError(
            f"--trust-region {text}: choose from {TRUST_REGIONS}; there is no {name!r}"
            f"{hint(name, TRUST_REGIONS.places)}"
        )
    kind = load(REGIONS, name)
    bounds = _numbers(text, words) or kind.bounds
    if len(bounds) != len(kind.bounds):
        raise ConfigError(
            f"--trust-region {text}: {len(bounds)} numbers, and {name} has {len(kind.bounds)} "
            f"({', '.join(kind.units)}); write {_example(name, kind)}"
        )
    if found := kind.defect(*bounds):
        raise ConfigError(f"--trust-region {text}: {found}; for example {_example(name, kind)}")
    return kind(*bounds)


def _numbers(text: str, words: Sequence[str]) -> tuple[float, ...]:
    try:
        numbers = tuple(float(word) for word in words)
    except ValueError:
        raise ConfigError(
            f"--trust-region {text}: what follows a colon is a number, as in dppo:0.2"
        ) from None
    if not all(number < float("inf") for number in numbers):
        raise ConfigError(f"--trust-region {text}: a bound is a finite number")
    return numbers


def _example(name: str, kind: type[Region]) -> str:
    return ":".join([name, *(f"{bound:g}" for bound in kind.bounds)])
