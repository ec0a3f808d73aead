"""From the command line to one checked `RunConfig`.

    defaults < preset < --config FILE < flags      (train.py then fixes the synchronous values)

The dictionaries `megatron`, `sglang` and `router` merge key by key, everything else is replaced.
Refused before anything starts: unknown names (with the nearest), values out of bounds, and
combinations that cannot run (`validate.py`).
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from agentrl.config import fields, passthrough, spellings
from agentrl.config.command_line import GivenFlags, Program, read_flags
from agentrl.config.conditions import ROW_ENVS
from agentrl.config.device import choose_here
from agentrl.config.device_defaults import (
    check_device,
    for_device,
    notes_on_device,
    without_defaults,
)
from agentrl.config.edited import notes_on_edits
from agentrl.config.facts import mode_of
from agentrl.config.fields import own_fields
from agentrl.config.passthrough import FAMILIES, Family
from agentrl.config.places import check_run_id, with_places
from agentrl.config.presets import DEFAULT, preset
from agentrl.config.record import read_record
from agentrl.config.refusals import beside
from agentrl.config.resume import find_run
from agentrl.config.run import RunConfig
from agentrl.config.stored import refuse_changes
from agentrl.config.unread import for_evaluation, is_read
from agentrl.config.validate import validate
from agentrl.errors import ConfigError
from agentrl.nearest import nearest
from agentrl.paths import kind_of

__all__ = ["Resolved", "layered", "parse"]

Layer = dict[str, Any]


class Resolved(msgspec.Struct, frozen=True):
    """A configuration that can run. `notes` are lines for the user, the most important first.
    `said`: the fields that somebody set, as they were spelled."""

    config: RunConfig
    notes: list[str]
    said: dict[str, str] = {}
    dry_run: bool = False


def parse(argv: list[str], program: Program) -> Resolved:
    """Read, merge and check. Raises ConfigError naming each flag that is refused, the numbers and
    what to do, and EnvironmentSetupError for a device that this host cannot give.

    The device is decided here, but for a run on a cluster (`--ray-address`): that one stays `auto`
    until the cluster can be asked.
    """
    given = read_flags(argv)
    with beside(given.refused):
        config, notes, said = _layered(given, program)
        if config.ray_address is None or config.device == "cpu":
            choice = choose_here(config.device)
            check_device(config, choice.device)
            config = for_device(config, choice.device)
            notes += [str(choice), *notes_on_device(config, choice.device)]
        notes += validate(config, said)
    return Resolved(config, notes, said, given.dry_run)


def layered(given: GivenFlags, program: Program) -> tuple[RunConfig, list[str]]:
    """The merged configuration, each value within its own bounds; nothing is compared yet."""
    with beside(given.refused):
        config, notes, _ = _layered(given, program)
    return config, notes


def _layered(given: GivenFlags, program: Program) -> tuple[RunConfig, list[str], dict[str, str]]:
    """As `layered`, and what somebody said: the flags, and what is no default in a file."""
    flags = dict(given.values)
    file = _read(Path(given.config)) if given.config is not None else {}
    if flags.get("eval_only"):
        file = for_evaluation(file)
    said = _said(file, f" (in {given.config})") | given.said
    values = _merged(_without_keys(file, flags), flags)
    check_run_id(values.get("run_id"))
    run = find_run(
        *(values.get(n, own_fields()[n].default) for n in ("resume", "run_dir", "run_id")),
        eval_only=values.get("eval_only", False),
    )
    if run is not None:
        if values["resume"] == "auto":  # they have found it
            said = {name: text for name, text in said.items() if name not in ("run_dir", "run_id")}
        return *_continued(run.resolve(), values, program), said
    under, notes = _preset(values)
    if values.get("resume") == "auto":
        where = Path(values.get("run_dir", own_fields()["run_dir"].default))
        where /= values.get("run_id") or ""
        notes.insert(0, f"--resume auto: there is nothing to continue in {where}; a new run begins")
    if program == "train":
        values = _synchronous(values)
    config, advice = _begun(under, values)
    # Nobody said what a preset has for another kind of run: that would be told to config.toml.
    read = {name: value for name, value in under.items() if is_read(config, name)}
    if read != under:
        config, advice = _begun(read, values)
    return config, notes + advice, said


def _begun(under: Layer, given: Layer) -> tuple[RunConfig, list[str]]:
    values, advice = _with_ranks(_merged(under, given))
    return RunConfig(**with_places(_with_row_keys(values))), advice


def _said(layer: Layer, origin: str) -> dict[str, str]:
    """The spellings of what `layer` sets to another value than the default."""
    own = own_fields()
    found = {n: own[n].spelled(v) for n, v in layer.items() if n in own and v != own[n].default}
    found |= {n: f"[{n}]" for n in FAMILIES if layer.get(n)}
    return {name: text + origin for name, text in found.items()}


def _continued(run: Path, given: Layer, program: Program) -> tuple[RunConfig, list[str]]:
    """The configuration of `run` under what is given now. Its id is that of its beginning: the
    folder may have been renamed since."""
    before = _read(run / "config.toml")
    if not before:
        raise ConfigError(
            f"--resume {run}: its config.toml is empty, and with it the run's settings are lost;"
            f" bring it back from a copy, or take the weights into a new run with --load {run}"
        )
    record = read_record(run)
    place = {
        "resume": str(run),
        "run_dir": str(run.parent),
        "run_id": run.name if record is None else record.id,
    }
    values = _merged(without_defaults(before), given) | place
    if program == "train":
        values = _synchronous(values)
    config = RunConfig(**with_places(_with_row_keys(values)))
    notes = refuse_changes(RunConfig(**with_places(before)), config, run)
    edits = [] if record is None else notes_on_edits(record.files, config)
    return config, [f"continuing {run}", *notes, *edits]


def _preset(values: Layer) -> tuple[Layer, list[str]]:
    """The values of the preset that lies under `values`, if one does, and its name."""
    name, reason = values.get("preset"), ""
    starters = [name for name, field in own_fields().items() if field.fact.starts]
    if name is None and not any(starter in values for starter in starters):
        flags = [own_fields()[starter].flag for starter in starters]
        name, reason = DEFAULT, f" (no {', '.join(flags[:-1])} or {flags[-1]} given)"
    if name is None:
        return {}, []
    return preset(name).values | {"preset": name}, [f"preset {name}: {preset(name).about}{reason}"]


def _synchronous(values: Layer) -> Layer:
    kept = {n: f.fact.synchronous for n, f in own_fields().items()}
    fixed = {name: value for name, value in kept.items() if value is not None}
    for name, value in fixed.items():
        if values.get(name, value) != value:
            raise ConfigError(
                f"{own_fields()[name].flag} is {values[name]}, but train.py is synchronous and has "
                f"{value}; leave it out or use train_async.py"
            )
    return values | fixed


def _with_ranks(values: Layer) -> tuple[Layer, list[str]]:
    """On the CPU of one host the learner has one rank, unless it is told otherwise."""
    name, wanted = "actor_num_gpus_per_node", values.get("device", "auto")
    if name in values or "ray_address" in values or wanted == "cuda":
        return values, []
    if choose_here(wanted).device == "cuda":
        return values, []
    return values | {name: 1}, [f"on the CPU the learner has 1 rank ({own_fields()[name].flag})"]


def _env_args() -> dict[str, str]:
    """The flags that are arguments of the environments for rows, by their names there."""
    facts = {name: field.fact.env_arg for name, field in own_fields().items()}
    return {argument: name for name, argument in facts.items() if argument is not None}


def _with_row_keys(values: Layer) -> Layer:
    """The environment and its arguments: a run with data and no other environment has the first of
    those for rows; demonstrations have none."""
    env = values.get("env", ROW_ENVS[0] if "prompt_data" in values else None)
    if mode_of(values) == "supervised" or env not in ROW_ENVS:
        return values
    # The defaults are those of the environment too: a file that spells them out says nothing more.
    given = {
        argument: values[name]
        for argument, name in _env_args().items()
        if values.get(name, own_fields()[name].default) != own_fields()[name].default
    }
    return values | {"env": env, "env_args": given | values.get("env_args", {})}


def _without_keys(file: Layer, flags: Layer) -> Layer:
    """A file's `env_args` may hold keys of rows; one that is given as a flag now is not its say."""
    if "env_args" not in file:
        return file
    left = {n: value for n, value in file["env_args"].items() if _env_args().get(n) not in flags}
    return file | {"env_args": left}


def _merged(low: Mapping[str, Any], high: Mapping[str, Any]) -> Layer:
    merged = dict(low) | dict(high)
    for family in FAMILIES:
        if both := {**low.get(family, {}), **high.get(family, {})}:
            merged[family] = both
    return merged


def _converted(raw: Mapping[Any, Any]) -> Layer:
    values: Layer = {}
    for name, value in raw.items():
        if name in FAMILIES:
            values[name] = _family(name, value)
        else:
            values[name] = fields.convert(own_fields()[name], value)
    return values


def _family(family: Family, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{family} is {value!r}; it must be a table of settings by name")
    keys = [passthrough.check_key(family, str(key), f"[{family}]") for key in value]
    return {k: passthrough.convert(family, k, v) for k, v in zip(keys, value.values(), strict=True)}


# ---- files --------------------------------------------------------------------------------------


def _read(path: Path) -> Layer:
    """The settings of a TOML or YAML file. Raises ConfigError for what is no setting."""
    if path.suffix not in (".toml", ".yaml", ".yml"):
        raise ConfigError(f"--config {path}: the name must end in .toml, .yaml or .yml")
    if (kind := kind_of(path)) not in ("a file", "nothing"):
        raise ConfigError(f"--config {path} is {kind}, not a file of settings")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path} cannot be read: {error}") from None
    data = _toml(text, path) if path.suffix == ".toml" else _yaml(text, path)
    if not isinstance(data, dict):
        raise ConfigError(f"--config {path} holds a {type(data).__name__}, not settings by name")
    return _converted({_known(str(name), path): value for name, value in data.items()})


def _toml(text: str, path: Path) -> Any:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"--config {path} is not TOML: {error}") from None


def _yaml(text: str, path: Path) -> Any:
    import yaml

    try:
        return yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise ConfigError(f"--config {path} is not YAML: {error}") from None


def _known(name: str, path: Path) -> str:
    key = name.replace("-", "_")
    if key in own_fields() or key in FAMILIES:
        return key
    if advice := spellings.advice(key):
        raise ConfigError(f"{path}: unknown setting {name}: {advice}")
    raise ConfigError(
        f"{path}: unknown setting {name}{nearest(key, own_fields())}; settings of Megatron, SGLang "
        "and the router belong into tables [megatron], [sglang] and [router]"
    )
