"""`train_async.py` and `train.py`: parse, say what will run, launch; light until then."""

import sys
import time
from pathlib import Path

from agentrl.config.command_line import Program, help_page
from agentrl.config.device import Device
from agentrl.config.fields import own_fields
from agentrl.config.passthrough import FAMILIES
from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.config.readiness import check_readiness
from agentrl.config.resolve import parse
from agentrl.config.run import RunConfig
from agentrl.errors import AgentRLError, ConfigError
from agentrl.visible import visible

__all__ = ["main", "run"]


def main(argv: list[str], program: Program) -> int:
    """Run the program; returns its exit code (see `agentrl.cluster.launch.launch`)."""
    try:
        return run(argv, program)
    except AgentRLError as error:
        sys.stderr.write(f"{program}: {visible(str(error))}\n")
        return error.exit_code


def run(argv: list[str], program: Program) -> int:
    """As `main`; raises AgentRLError for what is wrong before anything starts."""
    origin = time.monotonic()
    if (page := help_page(argv, program)) is not None:
        sys.stdout.write(page)
        return 0
    resolved = parse(argv, program)
    _say(resolved.notes)
    _say(check_readiness(resolved.config, dry_run=resolved.dry_run))
    if not resolved.config.eval_only:
        _check_algorithm(resolved.config)
    if not resolved.dry_run and resolved.config.ray_address is None:
        from agentrl.cluster.own_ray import import_ray

        import_ray()
    if resolved.dry_run or not _is_default(resolved.config):
        _say(_check_rooms(resolved.config))
    if resolved.dry_run and resolved.config.is_continued:
        from agentrl.cluster.remains import judge

        judge(Path(resolved.config.resume), resolved.config)
    if resolved.dry_run:
        from agentrl.config.plan import describe

        sys.stdout.write(describe(resolved.config))
        return 0
    from agentrl.cluster.launch import launch

    return launch(resolved.config, origin)


def _check_algorithm(config: RunConfig) -> None:
    """That the algorithm can run with these flags; one of the user's is tried on a small lease."""
    from agentrl.algorithms.load import ESTIMATORS, check_algorithm

    if config.advantage_estimator not in ESTIMATORS.builtin:
        from agentrl.learner.algorithm_trial import try_algorithm

        try_algorithm(config)
    check_algorithm(config)


def _say(notes: list[str]) -> None:
    for note in notes:
        sys.stdout.write(f"{visible(note)}\n")
    sys.stdout.flush()


def _is_default(config: RunConfig) -> bool:
    """Whether model, data, user code and passed-through flags are those that the project ships."""
    shipped = RunConfig(**PRESETS[DEFAULT].values)
    looked_at = [
        name
        for name, field in own_fields().items()
        if field.fact.holds in ("rows", "code", "model") or field.kind in ("json", "list")
    ]
    return all(getattr(config, n) == getattr(shipped, n) for n in (*looked_at, *FAMILIES))


def _check_rooms(config: RunConfig) -> list[str]:
    """What only the rooms can judge: the Env and its tasks, the filter's name, the model, refused
    flags, Megatron's layout. Returns notes for the user.

    Raises ConfigError, and DataError for a malformed row. Costs some seconds of imports, which the
    default job need not wait for.
    """
    from agentrl.envs.chat_formats import open_chat_format
    from agentrl.envs.check.preflight import preflight

    notes = preflight(config)
    chat = open_chat_format(config.chat_format, str(config.hf_checkpoint))
    if getattr(chat, "tools_in_prompt", True) is False:
        notes.append(
            f"the chat template of {config.hf_checkpoint} shows no tools: a model is not told of "
            "those of its Env, so it has to know them, or the prompt has to say what there is"
        )
    # Torch comes with these; nobody waits for it to hear of a mistake in an Env.
    from agentrl.actors.judge import load_filter
    from agentrl.config.megatron import MegatronSettings
    from agentrl.models.registry import open_model
    from agentrl.serving.launch import engine_command, router_command

    load_filter(config.dynamic_sampling_filter_path)
    model = str(config.hf_checkpoint)
    described = open_model(Path(model), config.model_family)
    described.architecture.check(MegatronSettings.from_config(config))
    notes += _on_chat_format(config, described.family.chat_format)
    # Commands are pure functions: making one without ports checks its settings.
    device: Device = "cpu" if config.device == "cpu" else "cuda"
    engine_command(
        model_path=model, port=0, name="check", device=device, extra=config.sglang, dtype="auto"
    )
    router_command(
        port=0, prometheus_port=0, turn_timeout_s=config.turn_timeout_s, extra=config.router
    )
    return notes


def _on_chat_format(config: RunConfig, usual: str | None) -> list[str]:
    """A note where the format is left to its default, and `usual`, that of the model's family, is
    another one for which its tokenizer has the words."""
    from agentrl.envs.chat_formats import open_chat_format

    if (
        usual is None
        or usual == config.chat_format
        or config.chat_format != RunConfig().chat_format
    ):
        return []
    try:
        open_chat_format(usual, str(config.hf_checkpoint))
    except ConfigError:
        return []
    speaks = f"models of the family of {config.hf_checkpoint} are instructed in"
    return [f"{speaks} --chat-format {usual}; this run writes turns as {config.chat_format} does"]
