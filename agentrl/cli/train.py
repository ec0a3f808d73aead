"""`train_async.py` and `train.py`: parse, say what will run, launch; light until then."""

import math
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from agentrl.cli.output import say
from agentrl.config.command_line import Program, help_page
from agentrl.config.conditions import GENERATE, has_shipped_estimator
from agentrl.config.device import Device
from agentrl.config.engine_groups import attention_ranks
from agentrl.config.engine_settings import ways_of_groups
from agentrl.config.engines import said_ranks
from agentrl.config.eval_sets import engine_context, eval_sets
from agentrl.config.fields import Field, own_fields
from agentrl.config.mixture import ways_of
from agentrl.config.model import read_model
from agentrl.config.passthrough import FAMILIES
from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.config.readiness import check_readiness
from agentrl.config.refusals import beside, gather
from agentrl.config.renames import under_written_names
from agentrl.config.resolve import Resolved, read
from agentrl.config.retention import notes_on_retention
from agentrl.config.room import check_room
from agentrl.config.run import RunConfig
from agentrl.config.secrets import forget_in_argv
from agentrl.config.unread import is_read
from agentrl.config.validate import validate
from agentrl.errors import AgentRLError, ConfigError
from agentrl.model_dir import CONFIG, TOKENIZER
from agentrl.paths import kind_of
from agentrl.visible import visible

if TYPE_CHECKING:
    from agentrl.models.registry import Model

__all__ = ["main", "run"]


def main(argv: list[str], program: Program) -> int:
    """Run the program; returns its exit code (see `agentrl.cluster.launch.launch`, which takes
    signals itself: before it, Ctrl-C is a KeyboardInterrupt)."""
    try:
        return run(argv, program)
    except AgentRLError as error:
        sys.stderr.write(f"{program}: {visible(str(error))}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write(f"{program}: interrupted\n")
        return 130


def run(argv: list[str], program: Program) -> int:
    """As `main`; raises AgentRLError for what is wrong before anything starts."""
    origin = time.monotonic()
    if (page := help_page(argv, program)) is not None:
        sys.stdout.write(page)
        return 0
    found = read(argv, program)
    config = found.config
    forget_in_argv(config)
    light = (
        partial(validate, config, found.said),
        partial(check_readiness, config, dry_run=found.dry_run),
    )
    with under_written_names(found.written):
        if found.dry_run:
            return _dry_run(_with_format(found), *light)
        config = _check(found, *light)
    from agentrl.cluster.launch import launch

    return launch(config, origin)


_Check = Callable[[], list[str] | None]


def _check(found: Resolved, *light: _Check) -> RunConfig:
    """Look at what a run needs, and say what deserves a look; the configuration with what its model
    says of it. Raises with what is wrong."""
    config = found.config
    say(found.notes + _light_notes(found, *light))
    say(_check_algorithm(config, found.said))
    if config.ray_address is None:
        from agentrl.cluster.own_ray import import_ray

        import_ray()  # before user code does
    told = _with_format(msgspec.structs.replace(found, notes=[]))
    say(told.notes)
    if not _is_default(config):
        say(_check_rooms(told.config))
    return told.config


def _with_format(found: Resolved) -> Resolved:
    """With the chat format that the model says, where nobody names one, and a note on it."""
    from agentrl.envs.chat_formats import with_chat_format

    config, notes = with_chat_format(found.config)
    return msgspec.structs.replace(found, config=config, notes=found.notes + notes)


def _light_notes(found: Resolved, *light: _Check) -> list[str]:
    """The notes of the checks that take no time. Where they refuse something, the others are made
    too: there is no hurry any more, and all that is wrong is told at once."""
    try:
        with beside(found.refused):
            return gather(*light)
    except AgentRLError:
        if not _is_default(found.config):
            _all_notes(found, *light)
        raise


def _all_notes(found: Resolved, *light: _Check) -> list[str]:
    """Look at everything. Raises with all that is wrong."""
    with beside(found.refused):
        tried = partial(_check_algorithm, said=found.said, dry_run=found.dry_run)
        rooms = partial(_check_rooms, dry_run=found.dry_run)
        others = (tried, rooms, _check_remains)
        return gather(*light, *(partial(check, found.config) for check in others))


def _dry_run(found: Resolved, *light: _Check) -> int:
    """Look at everything, and say what would be started."""
    say(found.notes + _all_notes(found, *light))
    from agentrl.config.plan import describe

    if found.config.ray_address is not None or found.config.port_range is not None:
        from agentrl.cluster.dry_placement import placement_notes

        say(placement_notes(found.config))
    sys.stdout.write(describe(found.config, _models(found.config)))
    return 0


def _check_remains(config: RunConfig) -> list[str]:
    """Whether the run can be continued; notes on what it left."""
    if not config.is_continued:
        return []
    from agentrl.cluster.remains import judge

    return judge(Path(config.resume), config)


def _check_algorithm(
    config: RunConfig, said: Mapping[str, str], *, dry_run: bool = False
) -> list[str]:
    """That the algorithm can run with these flags; one of the user's is tried on a small lease.
    Returns notes for the user."""
    if config.eval_only:
        return []
    from agentrl.algorithms.load import check_algorithm, users_flag

    if users_flag(config) is not None:
        from agentrl.cluster.signals import holding_sigint

        with holding_sigint():  # torch is imported
            from agentrl.learner.algorithm_trial import try_algorithm

        try_algorithm(config, said)
    check_algorithm(config, said)
    return [] if has_shipped_estimator(config) else _on_checkpoints(config, dry_run=dry_run)


def _models(config: RunConfig) -> frozenset[str]:
    """Those that the algorithm needs beside the policy."""
    from agentrl.algorithms.load import load_algorithm

    return frozenset() if config.eval_only else load_algorithm(config).needs.models


def _on_checkpoints(config: RunConfig, *, dry_run: bool) -> list[str]:
    """What checkpoints take, of an estimator that had to be asked for its models."""
    models = _models(config)
    notes = check_room(config, dry_run=dry_run, models=models)
    if kind_of(Path(str(config.hf_checkpoint), CONFIG)) == "a file":  # else that is told already
        model = read_model(Path(str(config.hf_checkpoint)))
        notes += notes_on_retention(config, model, models)
    return notes


def _is_default(config: RunConfig) -> bool:
    """Whether model, data, user code, servers and passed-through flags are those that the project
    ships."""
    shipped = RunConfig(**PRESETS[DEFAULT].values)

    def is_shipped(name: str, was: Any = None) -> bool:
        value = getattr(config, name)
        return value == getattr(shipped, name) or (was is not None and value == was)

    named = {n: field.fact.was for n, field in own_fields().items() if _is_looked_at(field)}
    return all(is_shipped(n, was) for n, was in named.items()) and all(map(is_shipped, FAMILIES))


def _is_looked_at(field: Field) -> bool:
    """Whether what a flag names can be wrong in a way that only the rooms can tell."""
    holds = ("rows", "code", "file", "model", "server")
    return field.fact.holds in holds or bool(field.fact.weights) or field.kind in ("json", "list")


def _check_rooms(config: RunConfig, *, dry_run: bool = False) -> list[str]:
    """What only the rooms can judge: the Env and its tasks, the filter's name, the model, refused
    flags, Megatron's layout. Returns notes for the user.

    Raises ConfigError, and DataError for a malformed row. Costs some seconds of imports, which the
    default job need not wait for.
    """
    from agentrl.cluster.signals import holding_sigint

    with holding_sigint():  # torch is imported
        from agentrl.cli.external_engines import check_external_engines
        from agentrl.cli.external_router import check_external_router
        from agentrl.cli.reward_model import check_reward_model
        from agentrl.cli.reward_trial import try_rewards
        from agentrl.cli.teacher import check_teacher
        from agentrl.envs.check.preflight import preflight
        from agentrl.envs.check.prompts import check_prompts

    checks: list[Callable[[RunConfig], list[str] | None]] = [preflight, _check_hooks]
    checks.append(partial(check_reward_model, dry_run=dry_run))
    if kind_of(Path(str(config.hf_checkpoint), CONFIG)) == "a file":  # else that is told already
        checks += [_check_model, _check_commands]
        asked = (check_teacher, check_external_engines, check_external_router)
        checks += [partial(ask, dry_run=dry_run) for ask in asked]
        tokenizer = kind_of(Path(str(config.hf_checkpoint), TOKENIZER))
        has_one = not dry_run or tokenizer != "nothing"
        checks += [_check_chat_format, check_prompts] if has_one else [_no_tokenizer]
        if tokenizer == "a file":
            checks.append(partial(try_rewards, dry_run=dry_run))
    return gather(*(partial(check, config) for check in checks))


def _no_tokenizer(config: RunConfig) -> list[str]:
    """A dry run goes by config.json alone, and says what it could not look at."""
    lacks = f"--hf-checkpoint {config.hf_checkpoint} has no {TOKENIZER}"
    return [f"{lacks}: chat format and prompts not checked, and a run needs it"]


def _check_hooks(config: RunConfig) -> list[str]:
    """That each hook is there and has a signature of its kind; those of the algorithm are tried."""
    from agentrl.cli.hooks.table import HOOKS
    from agentrl.envs.slime_source import require_buffer

    hooks = [hook for hook in HOOKS.values() if not hook.is_of_algorithm]
    checks = [partial(hook.check, config) for hook in hooks if is_read(config, hook.field)]
    if config.buffer_filter_path is not None:
        checks.append(partial(require_buffer, config))
    return gather(*checks)


def _check_chat_format(config: RunConfig) -> list[str]:
    from agentrl.envs.chat_formats import chat_format_of, open_chat_format

    chat = open_chat_format(chat_format_of(config), str(config.hf_checkpoint))
    if all(way.env in (None, "single-turn", GENERATE) for way in ways_of(config)):
        return []
    if lacks := getattr(chat, "lacks_calls", ""):
        return [f"a prompt that has tools will be refused: {lacks}"]
    if getattr(chat, "tools_in_prompt", True):
        return []
    note = (
        f"the chat template of {config.hf_checkpoint} shows no tools: a model is not told of "
        "those of its Env, so it has to know them, or the prompt has to say what there is"
    )
    return [note]


def _check_model(config: RunConfig) -> list[str]:
    from agentrl.cli.weights import check_weights
    from agentrl.models.mtp import with_mtp
    from agentrl.models.registry import open_model

    place = Path(str(config.hf_checkpoint))
    read_model(place)  # sizes that are none are told as such
    described = open_model(place, config.model_family)
    policy = with_mtp(described) if config.enable_mtp_training else described
    return gather(
        partial(_check_architecture, config, policy),
        partial(check_weights, config, described, policy),
        partial(_check_frozen, config, policy),
        partial(_check_window, config, described),
        partial(_check_attention_ranks, config, described),
        partial(_check_digests, config, described),
        partial(_check_exact, config, described),
    )


def _check_architecture(config: RunConfig, described: "Model") -> None:
    """Compare Megatron's flags with the model; those that are refused are told already, and hide no
    other."""
    from agentrl.config.megatron import MegatronSettings, taken

    config = msgspec.structs.replace(config, megatron=taken(config.megatron))
    described.architecture.check(MegatronSettings.from_config(config))


def _check_frozen(config: RunConfig, described: "Model") -> list[str]:
    """Say how much is trained. Refuse expressions that are in no parameter's name, and a run that
    trains nothing. The learner judges a family whose parameters are not known here."""
    from agentrl.config.freezing import about_freezing, about_names, freezes, trains
    from agentrl.models.shapes import is_complete, parameters_of

    if not freezes(config) or not is_complete(described.family) or [*about_freezing(config)]:
        return []
    sizes = {name: math.prod(shape) for name, shape in parameters_of(described).items()}
    if lines := list(about_names(config, sizes, f"a {described.architecture.name}")):
        raise ConfigError("\n".join(lines))
    trained = sum(size for name, size in sizes.items() if trains(config, name))
    return [f"{trained:,} of {sum(sizes.values()):,} parameters are trained, the others are frozen"]


def _check_window(config: RunConfig, described: "Model") -> None:
    """Refuse contexts that the learner would see through a window and the engines in full."""
    architecture = described.architecture
    context = engine_context(config, eval_sets(config)) or architecture.max_position_embeddings
    window = architecture.window_size
    if window is None or described.family.engine_window or not config.has_engines:
        return
    if context > window[0] + 1:
        raise ConfigError(
            f"a context of {context} tokens is longer than the sliding window of {window[0] + 1} "
            f"that {config.hf_checkpoint} was trained with, and SGLang's {architecture.name} has "
            f"no window; give --rollout-max-context-len {window[0] + 1} or less"
        )


def _check_attention_ranks(config: RunConfig, described: "Model") -> None:
    """Refuse data-parallel attention where SGLang would add up what belongs to other requests."""
    ways = [way for _, way in ways_of_groups(config)]
    widest = max(ways, key=lambda way: attention_ranks(way.sglang), default=config)
    groups = attention_ranks(widest.sglang)
    if groups > 1 and not described.family.engine_ranks:
        raise ConfigError(
            f"{said_ranks(widest.sglang)} {groups}: SGLang's {described.architecture.name} is not "
            "known to keep the requests of groups apart: models that share the heads of attention "
            "out over all ranks of an engine mix them; leave it out for this model"
        )


def _check_digests(config: RunConfig, described: "Model") -> None:
    """Refuse to compare weights that engines keep in another form than they get them in."""
    if config.check_weight_update_equal and not described.family.engine_digests:
        raise ConfigError(
            f"--check-weight-update-equal: SGLang keeps tensors of a {described.architecture.name} "
            "transposed or in another type, whose digests are not computed here; leave it out"
        )


def _check_exact(config: RunConfig, described: "Model") -> None:
    """Refuse to promise the same bits for a model that was not compared."""
    from agentrl.models.rope import LinearRope

    architecture = described.architecture
    is_plain = architecture.rope == LinearRope() and architecture.window_size is None
    if config.computes_exactly and not (described.family.exact and is_plain):
        raise ConfigError(
            f"--true-on-policy-mode: no {architecture.name} with its positions and windows was "
            "compared with SGLang's bit by bit; leave the flag out for this model"
        )


def _check_commands(config: RunConfig) -> None:
    """Commands are pure functions: making one without ports checks its settings."""
    from agentrl.serving.launch import engine_command, router_command

    device: Device = "cpu" if config.device == "cpu" else "cuda"
    model = str(config.hf_checkpoint)
    for _, way in ways_of_groups(config):
        engine_command(
            model_path=model, port=0, name="check", device=device, extra=way.sglang, dtype="auto"
        )
    router_command(
        port=0, prometheus_port=0, turn_timeout_s=config.turn_timeout_s, extra=config.router
    )
