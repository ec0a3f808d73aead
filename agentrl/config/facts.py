"""`flag(...)`: what there is to say of a flag, at its field, and nowhere else.

Help page, command line, refusals and the rules for a continued run read these facts; no module
keeps a list of flags of its own. Tests compare them with what the processes of a run are given.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

__all__ = [
    "ACTS",
    "ALL",
    "BOTH",
    "ENGINES",
    "FREE",
    "GROUPS",
    "LEARNER",
    "PLAYED",
    "POLICY",
    "STATE",
    "TASKS",
    "TRAINS",
    "AtLeastTwo",
    "Count",
    "FlagFact",
    "Fraction",
    "Half",
    "MinusOneOrMore",
    "Mode",
    "Natural",
    "NonNegative",
    "OnResume",
    "OverOne",
    "Port",
    "Positive",
    "Share",
    "fixed",
    "flag",
    "may_fall",
    "mode_of",
    "noted",
]

# A bound belongs to the number, not to its absence.
Natural = Annotated[int, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]
AtLeastTwo = Annotated[int, Meta(ge=2)]
Port = Annotated[int, Meta(ge=1, le=65535)]
Positive = Annotated[float, Meta(gt=0)]
NonNegative = Annotated[float, Meta(ge=0)]
OverOne = Annotated[float, Meta(gt=1)]
MinusOneOrMore = Annotated[int, Meta(ge=-1)]
Share = Annotated[float, Meta(gt=0, le=1)]
Fraction = Annotated[float, Meta(ge=0, le=1)]

#: What a run does: learn from rewarded episodes, imitate dialogues, or only score a model.
Mode = Literal["policy", "supervised", "eval"]
Holds = Literal[
    "value",
    "rows",
    "folder",
    "code",
    "file",
    "model",
    "settings",
    "names",
    "server",
    "address",
    "uri",
]
POLICY: frozenset[Mode] = frozenset({"policy"})
TRAINS: frozenset[Mode] = frozenset({"policy", "supervised"})
ACTS: frozenset[Mode] = frozenset({"policy", "eval"})
ALL: frozenset[Mode] = TRAINS | ACTS

#: The halves of a training run: a learner, and engines with the workers that play on them.
Half = Literal["learner", "engines"]
LEARNER: frozenset[Half] = frozenset({"learner"})
ENGINES: frozenset[Half] = frozenset({"engines"})
BOTH: frozenset[Half] = LEARNER | ENGINES


class OnResume(msgspec.Struct, frozen=True):
    """Whether a continued run may change the flag. `why`: of a fixed one what contradicts a change,
    of a noted one what the user should know."""

    kind: Literal["free", "fixed", "may fall", "noted"]
    why: str = ""


def fixed(why: str) -> OnResume:
    """Something stored was made under the old value, and would be read as if under the new one."""
    return OnResume("fixed", why)


def may_fall(why: str) -> OnResume:
    """What was stored under a value is as good under a lower one, and not under a higher one."""
    return OnResume("may fall", why)


def noted(why: str) -> OnResume:
    """A change is allowed, and told."""
    return OnResume("noted", why)


#: It applies from the continuation on, and no stored row contradicts it.
FREE = OnResume("free")
TASKS = fixed("its ledger counts the tasks of that")
GROUPS = fixed("its ledger holds groups of that")
PLAYED = fixed("its ledger holds episodes that were played under that")
STATE = fixed("its checkpoints go on from that")


class FlagFact(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a flag beside its type, bounds and help.

    group        section of the help page
    on_resume    whether a continued run may change it
    modes        runs that read it; in others it is refused
    needs        name of the condition (`conditions.py`) under which they do; None: always
    halves       halves of a training run without which nothing reads it: of `BOTH`, neither
                 --debug-rollout-only nor --load-debug-rollout-data does
    holds        rows: a file of tasks; folder: written to config.toml as an absolute path;
                 code: a name or path of the user's code; file: a name or any file;
                 model: a directory of weights; settings: a file of settings, or these; names: the
                 same, where null is a value; server: one that somebody else runs, and that is
                 asked before anything starts;
                 address: of a tracking service, http or https; uri: of such a service or a store
    weights      of a folder: the model of the learner that begins with the weights there
    env_arg      argument of the environments for rows that it becomes
    synchronous  the one value that train.py has
    starts       naming it makes a run of one's own: no preset lies under it
    collects     words that belong together: given again, the flag adds to what it has
    secret       written to no file, told to no other process
    variable     of the environment, which may have the value of a secret, or an address, in its
                 place
    was          an earlier default: a file that says it may have been written when it was one
    reaches_weights
                 False: whatever its value, the same leases are trained to the same weights
    corrects     it says how tokens of older weights are corrected: whoever gives it has no default
                 of that (`old_tokens.py`)
    """

    group: str
    on_resume: OnResume
    modes: frozenset[Mode] = ALL
    needs: str | None = None
    halves: frozenset[Half] = frozenset()
    holds: Holds = "value"
    weights: str = ""
    env_arg: str | None = None
    synchronous: int | None = None
    starts: bool = False
    collects: int = 0
    secret: bool = False
    variable: str = ""
    was: Any = None
    reaches_weights: bool = True
    corrects: bool = False


_FACTS = frozenset(FlagFact.__struct_fields__)


def flag(text: str, **said: Any) -> Meta:
    """The help text of a field, with its facts (of `FlagFact`) and bounds (of `Meta`)."""
    fact = FlagFact(**{name: said.pop(name) for name in _FACTS & said.keys()})
    return Meta(description=text, extra_json_schema={"fact": fact}, **said)


def mode_of(values: Any) -> Mode:
    """The mode of a run with these settings by name."""
    if values.get("eval_only"):
        return "eval"
    return "supervised" if values.get("loss_type") == "sft_loss" else "policy"
