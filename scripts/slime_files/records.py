"""What was recorded of slime's user files: no text of them, only what they asked, were answered and
returned, and the episode that agentrl made of it.

    tests/fixtures/slime_files/NAME.json    one example of slime: its files, its cases
"""

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

__all__ = [
    "FOLDER",
    "UPSTREAM",
    "Asked",
    "Case",
    "Edit",
    "Episode",
    "File",
    "Given",
    "Judged",
    "Record",
    "Returned",
    "Span",
    "Taught",
    "Turn",
    "differences",
    "names",
    "open_record",
    "save_record",
    "timeless",
]

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "fixtures" / "slime_files"
UPSTREAM = "https://github.com/THUDM/slime"


class Edit(msgspec.Struct, frozen=True):
    """An import of a file that is another here. `line` counts from 1."""

    path: str
    line: int
    was: str
    now: str


class File(msgspec.Struct, frozen=True):
    """A file of slime's that was run, as it is upstream."""

    path: str
    sha256: str


class Turn(msgspec.Struct, frozen=True):
    """What the engine was asked and answered. `prompt`: sha256 of the ids as JSON."""

    prompt: str
    max_new_tokens: int
    ids: list[int]
    logprobs: list[float]
    version: int
    finish: str


class Asked(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request and its answer, as they went over HTTP."""

    path: str
    request: Any
    reply: Any
    status: int = 200


class Given(msgspec.Struct, frozen=True):
    """What the function was called with."""

    prompt: Any
    label: Any
    index: int
    sampling: dict[str, Any]


class Returned(msgspec.Struct, frozen=True):
    """A sample that it returned, before the reward function saw it."""

    prompt: Any
    tokens: list[int]
    response_length: int
    response: str
    loss_mask: list[int] | None
    logprobs: list[float | None] | None
    status: str
    reward: Any
    remove_sample: bool


class Judged(msgspec.Struct, frozen=True):
    """What the reward function saw of a sample, and what it said."""

    prompt: Any
    response: str
    label: Any
    status: str
    reward: Any


class Taught(msgspec.Struct, frozen=True):
    """What slime's functions of distillation make of a teacher's answer: its log-probability of
    each token of the response, and the reward."""

    logprobs: list[float]
    reward: float


class Span(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tokens of a trajectory that one kind of writer wrote, and for sampled ones what the engine
    and the teacher said of them."""

    kind: str
    ids: list[int]
    logprobs: list[float] = []
    version: int = -1
    teacher: list[float] = []
    excluded: bool = False


class Episode(msgspec.Struct, frozen=True, omit_defaults=True):
    """What agentrl made of it. `trajectories`: the spans of each; `rewards`: what each earned, by
    its name and in their order, where they have earned unlike ones."""

    outcome: str
    error: str | None
    stop_reason: str
    reward: float
    metrics: dict[str, float]
    trajectories: list[list[Span]]
    rewards: dict[str, float] = {}


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One episode of an example. `outside`: whom the function asked beside the engine."""

    name: str
    row: dict[str, Any]
    given: Given | None = None
    turns: list[Turn]
    asked: list[Asked] = []
    outside: list[Asked] = []
    returned: list[Returned] = []
    judged: list[Judged] = []
    taught: Taught | None = None
    episode: Episode


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """An example. `differs`: what is another than in slime, as pages say it; `flags`: those of its
    launch script that its episodes are played with; `packages`: what was installed for it, by
    version."""

    commit: str
    script: str
    differs: str
    files: list[File]
    edits: list[Edit]
    packages: dict[str, str] = {}
    flags: list[str]
    cases: list[Case]


def timeless(reply: Any) -> Any:
    """An answer of /generate without what the clock says in it."""
    if not isinstance(reply, dict) or "meta_info" not in reply:
        return reply
    meta = {key: value for key, value in reply["meta_info"].items() if key != "e2e_latency"}
    return reply | {"meta_info": meta}


def names() -> list[str]:
    """The examples that were recorded."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


@functools.cache
def open_record(name: str) -> Record:
    """The record of an example."""
    return msgspec.json.decode((FOLDER / f"{name}.json").read_bytes(), type=Record)


def save_record(name: str, record: Record) -> None:
    """Write it, a line for each span, turn and request."""
    FOLDER.mkdir(exist_ok=True)
    text = _written(msgspec.to_builtins(record))
    (FOLDER / f"{name}.json").write_text(text + "\n")


def _written(value: Any, depth: int = 0) -> str:
    """JSON whose containers of containers have a line for each item."""
    items = list(value.values() if isinstance(value, dict) else value)
    if not any(isinstance(item, (dict, list)) and item for item in items) or depth > 6:
        return json.dumps(value)
    shown = [_written(item, depth + 1) if isinstance(item, (dict, list)) else json.dumps(item)
             for item in items]  # fmt: skip
    opening, closing = "[", "]"
    if isinstance(value, dict):
        opening, closing = "{", "}"
        shown = [f"{json.dumps(key)}: {text}" for key, text in zip(value, shown, strict=True)]
    pad = " " * (depth + 1)
    return f"{opening}\n" + ",\n".join(pad + text for text in shown) + f"\n{' ' * depth}{closing}"


def differences(recorded: Any, played: Any, at: str = "") -> Iterator[str]:
    """Where two records of one thing differ, each in one line; no more than the first in a list of
    numbers."""
    one, other = msgspec.to_builtins(recorded), msgspec.to_builtins(played)
    if isinstance(one, dict) and isinstance(other, dict):
        for key in {**one, **other}:
            yield from differences(one.get(key), other.get(key), f"{at}.{key}")
        return
    if isinstance(one, list) and isinstance(other, list) and one != other:
        if len(one) != len(other):
            yield f"{at}: {len(one)} recorded, {len(other)} played"
        for place, (mine, its) in enumerate(zip(one, other, strict=False)):
            if mine != its:
                yield from differences(mine, its, f"{at}[{place}]")
                return
    elif one != other:
        yield f"{at}: {one!r:.200} recorded, {other!r:.200} played"
