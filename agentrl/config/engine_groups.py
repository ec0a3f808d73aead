"""Which engines a run has, and of what kind each is: pure.

    sglang:                              --sglang-config FILE, in slime's form
      - name: default
        server_groups:
          - {worker_type: regular, num_gpus: 4, num_gpus_per_engine: 2}
          - {worker_type: regular, num_gpus: 2, overrides: {max_running_requests: 64}}
          - {worker_type: placeholder, num_gpus: 2}

Engines are numbered through the groups in their order. A group of `placeholder` has devices and no
engine. What is no group is passed over here: `engine_kinds` refuses it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeGuard, get_args

import msgspec

from agentrl.types import EngineKind

__all__ = [
    "KINDS",
    "PLACEHOLDER",
    "EngineGroup",
    "PlannedEngine",
    "alike",
    "attention_ranks",
    "engines_of",
    "groups_of_file",
    "listed_groups",
    "prefill_and_decode",
]

GroupKind = Literal["regular", "prefill", "decode", "placeholder"]
PLACEHOLDER: Final = "placeholder"
KINDS: tuple[str, ...] = get_args(GroupKind)


class EngineGroup(msgspec.Struct, frozen=True):
    """Engines that are alike: `num_gpus` devices in engines of `size`, with SGLang settings of
    their own (`overrides`, by ServerArgs field). `place`: where a file says so."""

    kind: GroupKind
    num_gpus: int
    size: int
    overrides: dict[str, Any] = {}
    place: str = ""

    @property
    def num_engines(self) -> int:
        """Engines of the group."""
        return 0 if self.kind == PLACEHOLDER else self.num_gpus // self.size


class PlannedEngine(msgspec.Struct, frozen=True):
    """One engine before it is started."""

    name: str
    kind: EngineKind
    size: int
    overrides: dict[str, Any] = {}


def attention_ranks(sglang: Mapping[str, Any]) -> int:
    """Groups of an engine's devices that each attend to requests of their own (data-parallel
    attention), with the ServerArgs fields `sglang`. SGLang has two spellings for it."""
    width = int(sglang.get("attn_dp_size") or 1)
    if width == 1 and sglang.get("enable_dp_attention"):
        width = int(sglang.get("dp_size") or 1)
    return width


def alike(num_engines: int, size: int) -> list[EngineGroup]:
    """The one group of a run whose engines are alike."""
    return [EngineGroup("regular", num_engines * size, size)]


def prefill_and_decode(num_engines: int, num_prefill: int, size: int) -> list[EngineGroup]:
    """`num_prefill` of so many engines of `size` devices prefill, the others decode."""
    num_decode = max(0, num_engines - num_prefill)
    return [
        EngineGroup("prefill", min(num_engines, num_prefill) * size, size),
        EngineGroup("decode", num_decode * size, size),
    ]


def listed_groups(said: Mapping[str, Any]) -> tuple[Mapping[str, Any], Sequence[Any]]:
    """The first model of a file, and what it lists as groups; nothing where there is none."""
    models = said.get("sglang")
    first = models[0] if isinstance(models, list) and models else None
    if not isinstance(first, dict):
        return {}, []
    groups = first.get("server_groups") or first.get("engine_groups")
    return first, groups if isinstance(groups, list) else []


def groups_of_file(said: Mapping[str, Any], size: int) -> list[EngineGroup]:
    """The groups of a file. `size`: devices of an engine where the file does not say."""
    model, groups = listed_groups(said)
    usual = model.get("num_gpus_per_engine")
    found = [_group(told, usual if _is_count(usual) else size, i) for i, told in enumerate(groups)]
    return [group for group in found if group is not None]


def engines_of(groups: Sequence[EngineGroup]) -> list[PlannedEngine]:
    """The engines of all groups, in order."""
    return [
        PlannedEngine(f"engine-{number}", kind, group.size, group.overrides)
        for number, (kind, group) in enumerate(_each(groups))
    ]


def _each(groups: Sequence[EngineGroup]) -> Iterator[tuple[EngineKind, EngineGroup]]:
    for group in groups:
        kind = group.kind
        if kind != PLACEHOLDER:
            for _ in range(group.num_engines):
                yield kind, group


def _group(told: Any, usual: int, index: int) -> EngineGroup | None:
    if not isinstance(told, dict) or told.get("worker_type") not in KINDS:
        return None
    size, overrides = told.get("num_gpus_per_engine", usual), told.get("overrides", {})
    if not _is_count(told.get("num_gpus")) or not _is_count(size):
        return None
    return EngineGroup(
        kind=told["worker_type"],
        num_gpus=told["num_gpus"],
        size=size,
        overrides=overrides if isinstance(overrides, dict) else {},
        place=f"server_groups[{index}]",
    )


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
