"""From the command line to one checked `RunConfig`.

    defaults < preset < --config FILE < flags      (train.py then fixes the synchronous values)

The dictionaries `megatron`, `sglang` and `router` merge key by key, everything else is replaced.
Refused before anything starts: unknown names (with the nearest), values out of bounds, and
combinations that cannot run (`validate.py`).
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from agentrl.config import answers
from agentrl.config.agreements import settle
from agentrl.config.command_line import Program, read_flags
from agentrl.config.conditions import GENERATE, ROW_ENVS, env_of
from agentrl.config.device import DeviceChoice, choose_here
from agentrl.config.device_defaults import (
    check_device,
    for_device,
    notes_on_device,
    without_defaults,
)
from agentrl.config.differences import on_differences
from agentrl.config.edited import notes_on_edits
from agentrl.config.facts import mode_of
from agentrl.config.fields import own_fields, synchronous_values, value_in
from agentrl.config.files import read_file
from agentrl.config.first_weights import with_first_weights, without_load
from agentrl.config.given import GivenFlags
from agentrl.config.old_tokens import with_old_tokens
from agentrl.config.passthrough import FAMILIES
from agentrl.config.places import check_run_id, with_places
from agentrl.config.presets import DEFAULT, preset
from agentrl.config.record import read_record
from agentrl.config.refusals import beside
from agentrl.config.refused import about_families
from agentrl.config.renames import under_written_names, written_names
from agentrl.config.resume import find_run
from agentrl.config.rollouts import sizes_of_engines, with_one_half
from agentrl.config.run import RunConfig
from agentrl.config.saved_by import run_of_load
from agentrl.config.stored import refuse_changes
from agentrl.config.unread import for_evaluation, is_for_such_a_run, notes_on_preset
from agentrl.config.validate import validate
from agentrl.config.workers import with_agent_workers
from agentrl.errors import AgentRLError, ConfigError

__all__ = [
    "RANKS",
    "Resolved",
    "layered",
    "merged",
    "parse",
    "ranks_here",
    "read",
    "said_in",
    "under_values",
]

Layer = dict[str, Any]

#: The field that says how many ranks the learner has on a node.
RANKS = "actor_num_gpus_per_node"


class Resolved(msgspec.Struct, frozen=True):
    """A configuration that can run. `notes` are lines for the user, the most important first.
    `said`: the fields that somebody set, as they were spelled. `refused`: a line for each flag that
    was not taken. `written`: names that somebody wrote, by those of today."""

    config: RunConfig
    notes: list[str]
    said: dict[str, str] = {}
    refused: list[str] = []
    dry_run: bool = False
    written: dict[str, str] = {}


def read(argv: list[str], program: Program) -> Resolved:
    """Read and merge; `refused` has a line for each flag that is no flag, or not one here. Raises
    ConfigError where no configuration can be made, and EnvironmentSetupError for a device that this
    host cannot give; both name what is refused as well.

    The device is decided here, but for a run on a cluster (`--ray-address`): that one stays `auto`
    until the cluster can be asked.
    """
    given = read_flags(argv)
    try:
        config, notes, said = _layered(given, program)
        if config.ray_address is None or config.device == "cpu":
            choice = _device(config, said)
            check_device(config, choice.device)
            config = for_device(config, choice.device)
            notes += [str(choice), *notes_on_device(config, choice.device)]
    except AgentRLError:
        with (
            under_written_names(written_names(given.asked)),
            beside([*given.refused, *about_families(given.values)]),
        ):
            raise
    written = written_names(given.asked)
    if config.replays_engine_routes and not config.megatron.get("moe_enable_routing_replay"):
        written["--moe-enable-routing-replay"] = own_fields()["use_rollout_routing_replay"].flag
    return Resolved(config, notes, said, given.refused, given.dry_run, written)


def _device(config: RunConfig, said: Mapping[str, str]) -> DeviceChoice:
    """Where the model runs on this host, and why. Raises EnvironmentSetupError as `choose_here`."""
    choice = choose_here(config.device)
    if config.device == "cpu" and config.is_continued and "device" not in said:
        return DeviceChoice("cpu", "as in the run that is continued")
    return choice


def parse(argv: list[str], program: Program) -> Resolved:
    """Read, merge and check. Raises as `read`, and ConfigError naming each flag that is refused,
    the numbers and what to do."""
    found = read(argv, program)
    with under_written_names(found.written), beside(found.refused):
        notes = validate(found.config, found.said)
    return msgspec.structs.replace(found, notes=found.notes + notes, refused=[])


def layered(given: GivenFlags, program: Program) -> tuple[RunConfig, list[str]]:
    """The merged configuration, each value within its own bounds; nothing is compared yet."""
    with beside(given.refused):
        config, notes, _ = _layered(given, program)
    return config, notes


def _layered(given: GivenFlags, program: Program) -> tuple[RunConfig, list[str], dict[str, str]]:
    """As `layered`, and what somebody said: the flags, and what is no default in a file."""
    flags = dict(given.values)
    file = read_file(Path(given.config)) if given.config is not None else GivenFlags()
    given.refused.extend(file.refused)
    layer = for_evaluation(file.values) if flags.get("eval_only") else file.values
    said = said_in(layer, f" (in {given.config})") | given.said
    values = merged(_without_keys(layer, flags), flags)
    check_run_id(values.get("run_id"))
    run = find_run(
        *(value_in(values, n) for n in ("resume", "run_dir", "run_id")),
        eval_only=values.get("eval_only", False),
    )
    run = run or run_of_load(values)
    if run is not None and values.get("resume", "auto") == "auto":  # they have found it
        said = {name: text for name, text in said.items() if name not in ("run_dir", "run_id")}
    under, preset_notes = under_values(values) if run is None else (_before(run), [])
    if values.get("sglang_config"):  # its groups say how many devices there are
        under = {name: value for name, value in under.items() if name != "rollout_num_gpus"}
    given.asked[:0] = file.asked
    asked = given.asked
    fixed = synchronous_values() if program == "train" else {}
    whole = merged(under, values)
    if run is None:
        with suppress(AgentRLError):  # a device that is not there is told below
            whole = _with_ranks(whole)[0]
    settled = settle(asked, whole | fixed, said)
    given.refused.extend(settled.refused)
    values, said = values | settled.values, said | settled.said
    read_already = sizes_of_engines(merged(under, values))
    said = {name: text for name, text in said.items() if name not in read_already}
    if run is None:
        config, notes = _new(under, values, program, given.refused)
        notes = _beginning(values) + preset_notes + notes
    else:
        config, notes = _continued(run.resolve(), under, values, program, given.refused)
    notes += [
        *file.notes,
        *given.notes,
        *answers.notes(asked),
        *settled.notes,
        *on_differences(asked, config, said, given.said),
    ]
    return config, notes, said


def _new(
    under: Layer, values: Layer, program: Program, refused: list[str]
) -> tuple[RunConfig, list[str]]:
    """The configuration of a run that begins, and notes on it; `refused` gets what the program has
    no choice of."""
    if values.get("num_epoch") is not None:  # how long a preset trains is no answer to that
        under = {name: value for name, value in under.items() if name != "num_rollout"}
    if program == "train":
        values = _synchronous(values, refused)
    config, advice = _begun(under, values)
    # Nobody said what a preset has for another kind of run: that would be told to config.toml.
    read = {name: value for name, value in under.items() if is_for_such_a_run(config, name)}
    if read != under:
        lost = {name: value for name, value in under.items() if name not in read}
        config, advice = _begun(read, values)
        advice += _on_preset(config, lost)
    return config, advice


def _on_preset(config: RunConfig, lost: Layer) -> list[str]:
    """What a preset that somebody asked for has lost. The default job is to be changed at will."""
    name = config.preset
    if name is None or name == DEFAULT:
        return []
    below = preset(DEFAULT).values
    own = {n: v for n, v in lost.items() if n in preset(name).values or n not in below}
    return notes_on_preset(config, name, own)


def _beginning(values: Layer) -> list[str]:
    """What a run that begins tells who wanted one to go on."""
    if values.get("resume") != "auto":
        return []
    where = Path(value_in(values, "run_dir"))
    where /= values.get("run_id") or ""
    return [f"--resume auto: there is nothing to continue in {where}; a new run begins"]


def _begun(under: Layer, given: Layer) -> tuple[RunConfig, list[str]]:
    values, advice = _with_ranks(merged(under, given))
    values, apart = with_one_half(values)
    values, notes = with_first_weights(with_places(_with_row_keys(values)))
    config, of_age = with_old_tokens(RunConfig(**values), values)
    config, of_size = with_agent_workers(config, values)
    return config, [*advice, *apart, *notes, *of_age, *of_size]


def said_in(layer: Layer, origin: str) -> dict[str, str]:
    """The spellings of what `layer` sets to another value than a default of today or of before."""
    own = own_fields()
    found = {
        name: own[name].spelled(value)
        for name, value in layer.items()
        if name in own and value not in (own[name].default, own[name].fact.was)
    }
    found |= {n: f"[{n}]" for n in FAMILIES if layer.get(n)}
    return {name: text + origin for name, text in found.items()}


def _before(run: Path) -> Layer:
    """The settings that `run` was begun with."""
    before = read_file(run / "config.toml")
    if before.refused:
        raise ConfigError("\n".join(before.refused))
    if not before.values:
        raise ConfigError(
            f"--resume {run}: its config.toml is empty, and with it the run's settings are lost;"
            f" bring it back from a copy, or take the weights into a new run with --load {run}"
        )
    return before.values


def _continued(
    run: Path, before: Layer, given: Layer, program: Program, refused: list[str]
) -> tuple[RunConfig, list[str]]:
    """The configuration of `run`, which began with `before`, under what is given now. Its id is
    that of its beginning: the folder may have been renamed since."""
    record = read_record(run)
    place = {
        "resume": str(run),
        "run_dir": str(run.parent),
        "run_id": run.name if record is None else record.id,
    }
    given = without_load(given, before)
    values = merged(without_defaults(before), given) | place
    if program == "train":
        values = _synchronous(values, refused)
    values, apart = with_one_half(values)
    config = RunConfig(**with_places(_with_row_keys(values)))
    stored = RunConfig(**with_places(before))
    # One who changes the place of the checkpoints has another --save already.
    save = given.get("save") if config.save == stored.save else None
    notes = refuse_changes(stored, config, run, save=save)
    edits = [] if record is None else notes_on_edits(record.files, config)
    return config, [f"continuing {run}", *apart, *notes, *edits]


def under_values(values: Layer) -> tuple[Layer, list[str]]:
    """The values of the presets that lie under `values`, if any do, and the name of the upper."""
    name, reason = values.get("preset"), ""
    starters = [name for name, field in own_fields().items() if field.fact.starts]
    if name is None and not any(starter in values for starter in starters):
        flags = [own_fields()[starter].flag for starter in starters]
        name, reason = DEFAULT, f" (no {', '.join(flags[:-1])} or {flags[-1]} given)"
    if name is None:
        return {}, []
    notes = [f"preset {name}: {preset(name).about}{reason}"]
    under = preset(name).values
    if not any(starter in values or starter in under for starter in starters):
        notes.append(f"preset {DEFAULT} lies under it: {preset(DEFAULT).about}")
        under = preset(DEFAULT).values | under
    return under | preset(name).sizes(merged(under, values)) | {"preset": name}, notes


def _synchronous(values: Layer, refused: list[str]) -> Layer:
    """`values` as train.py has them; `refused` gets a line for each that asks for another."""
    fixed = synchronous_values()
    refused.extend(
        f"{own_fields()[name].flag} is {values[name]}, but train.py is synchronous and has "
        f"{value}; leave it out or use train_async.py"
        for name, value in fixed.items()
        if values.get(name, value) != value
    )
    return values | fixed


def _with_ranks(values: Layer) -> tuple[Layer, list[str]]:
    """On the CPU of one host the learner has one rank, unless it is told otherwise."""
    if (num := ranks_here(values)) is None:
        return values, []
    note = f"on the CPU the learner has {num} rank ({own_fields()[RANKS].flag})"
    return values | {RANKS: num}, [note]


def ranks_here(values: Mapping[str, Any]) -> int | None:
    """Ranks of the learner on this host, where its device and not `values` says how many; None:
    they, or the default. Raises EnvironmentSetupError as `choose_here`."""
    wanted = values.get("device", "auto")
    if RANKS in values or "ray_address" in values or wanted == "cuda":
        return None
    return None if choose_here(wanted).device == "cuda" else 1


_FUNCTIONS = ("custom_generate_function_path", "rollout_function_path")


def _env_args() -> dict[str, str]:
    """The flags that are arguments of the environments for rows, by their names there."""
    facts = {name: field.fact.env_arg for name, field in own_fields().items()}
    return {argument: name for name, argument in facts.items() if argument is not None}


def _with_row_keys(values: Layer) -> Layer:
    """The environment and its arguments: a run with data and no other environment has the first of
    those for rows; demonstrations have none."""
    env = env_of(values)
    if mode_of(values) == "supervised" or env not in ROW_ENVS:
        return values
    # The defaults are those of the environment too: a file that spells them out says nothing more.
    given = {
        argument: values[name]
        for argument, name in _env_args().items()
        if value_in(values, name) != own_fields()[name].default
        and (name not in _FUNCTIONS or env == GENERATE)
    }
    return values | {"env": env, "env_args": given | values.get("env_args", {})}


def _without_keys(file: Layer, flags: Layer) -> Layer:
    """A file's `env_args` may hold keys of rows; one that is given as a flag now is not its say."""
    if "env_args" not in file:
        return file
    left = {n: value for n, value in file["env_args"].items() if _env_args().get(n) not in flags}
    return file | {"env_args": left}


def merged(low: Mapping[str, Any], high: Mapping[str, Any]) -> Layer:
    """The values of two layers; of a family of flags each has its own."""
    found = dict(low) | dict(high)
    for family in FAMILIES:
        if both := {**low.get(family, {}), **high.get(family, {})}:
            found[family] = both
    return found
