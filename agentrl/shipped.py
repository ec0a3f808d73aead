"""What ships with agentrl and is chosen by a name: each thing is a module of its shelf.

    agentrl/tokens/formats/qwen3_stripped.py   is --chat-format qwen3-stripped

To ship another is to add its file. Names are known without importing anything, so that `--help`
may list them; so is a fact that the class in a file says in a line of its own, `NAME = True`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from agentrl.nearest import near

__all__ = [
    "ALGORITHMS",
    "BOXED",
    "CHAT_FORMATS",
    "FILTERS",
    "MODEL_FAMILIES",
    "REWARDS",
    "TOOLS",
    "TRACKERS",
    "TRUST_REGIONS",
    "Shelf",
    "about_reward",
]


@dataclass(frozen=True)
class Shelf:
    """A package whose modules are things of one kind, and what those stand on: a thing has a line
    that begins as `mark` says (a pattern; `STEM` is the file's name, `Name` that as a class).
    `dash`: what an underscore of a file's name is in the name of the thing. `theirs`: places in
    other projects, each with the name of ours that stands for what is there."""

    package: str
    mark: str
    dash: str = "-"
    theirs: Mapping[str, str] = field(default_factory=dict)

    @property
    def places(self) -> dict[str, str]:
        """Names in order, and the module of each."""
        stems = _things(self.package, self.mark)
        return {stem.replace("_", self.dash): f"{self.package}.{stem}" for stem in stems}

    def says(self, name: str, fact: str) -> bool:
        """Whether a thing says that a fact holds of it; False where there is no such thing."""
        return name in _saying(tuple(self.places.items()), fact)

    def saying(self, fact: str) -> list[str]:
        """Names of those that say so."""
        return [name for name in self.places if self.says(name, fact)]

    def __str__(self) -> str:
        return ", ".join(self.places)


@cache
def _things(package: str, mark: str) -> list[str]:
    folder = Path(__file__).parents[1].joinpath(*package.split("."))
    files = {path.stem: path.read_text() for path in sorted(folder.glob("[!_]*.py"))}
    return [stem for stem, text in files.items() if _is_thing(stem, text, mark)]


def _is_thing(stem: str, text: str, mark: str) -> bool:
    name = "".join(word.capitalize() for word in stem.split("_"))
    line = mark.replace("STEM", stem).replace("Name", name)
    return bool(re.search(f"^{line}", text, re.MULTILINE)) and "    is_chosen = False" not in text


@cache
def _saying(places: tuple[tuple[str, str], ...], fact: str) -> frozenset[str]:
    line = re.compile(rf"^    {fact} = True$", re.MULTILINE)
    root = Path(__file__).parents[1]
    files = {name: root.joinpath(*place.split(".")).with_suffix(".py") for name, place in places}
    return frozenset(name for name, file in files.items() if line.search(file.read_text()))


_CLASS, _FUNCTION = r"class Name\(", r"(async )?def STEM\("
ALGORITHMS = Shelf("agentrl.algorithms", _CLASS, dash="_")
CHAT_FORMATS = Shelf("agentrl.tokens.formats", r"class \w+Format\((?!Protocol)")
_SLIMES_FILTERS = "slime.rollout.filter_hub.dynamic_sampling_filters"
FILTERS = Shelf(
    "agentrl.actors.filters",
    _FUNCTION,
    dash="_",
    theirs=dict.fromkeys(
        (
            f"{_SLIMES_FILTERS}.check_reward_nonzero_std",
            f"{_SLIMES_FILTERS}.check_reward_nonzero_std_with_fallback",
        ),
        "check_reward_nonzero_std",
    ),
)
MODEL_FAMILIES = Shelf("agentrl.models", "FAMILY = ")
REWARDS = Shelf(
    "agentrl.envs.rewards",
    _FUNCTION,
    dash="_",
    theirs={"slime.rollout.on_policy_distillation.reward_func": "nothing"},
)
#: A method of an Env, which takes `self`, has no name of its own.
_TOOL = r"@tool(\((.|\n)*?\))?\n(async )?def STEM\((?!\s*self\b)"
TOOLS = Shelf("agentrl.tools", _TOOL, dash="_")
TRACKERS = Shelf("agentrl.telemetry.trackers", r"class NameTracker\(")
TRUST_REGIONS = Shelf("agentrl.algorithms.regions", _CLASS)
#: Before the name of a reward: it is given what the last \\boxed{...} of the response holds.
BOXED = "boxed_"


def about_reward(name: str) -> str:
    """What is wrong with the name of a reward that ships, as --rm-type takes it; nothing where
    there is one."""
    plain = name.strip().removeprefix(BOXED)
    if plain in REWARDS.places:
        return ""
    meant = near(plain, REWARDS.places)
    said = f"did you mean {' or '.join(meant)}?" if meant else f"known: {REWARDS}"
    return f"there is no reward {name.strip()!r}; {said} (a function of yours: --custom-rm-path)"
