"""`train_async.py` and `train.py`: parse, say what will run, launch; light until then."""

import sys
import time
from pathlib import Path

from agentrl.config.flags import Program, help_page
from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.config.resolve import parse
from agentrl.config.run import RunConfig
from agentrl.errors import AgentRLError

__all__ = ["main"]


def main(argv: list[str], program: Program) -> int:
    """Run the program; returns its exit code (see `agentrl.cluster.launch.launch`)."""
    origin = time.monotonic()
    try:
        return _main(argv, program, origin)
    except AgentRLError as error:
        sys.stderr.write(f"{program}: {error}\n")
        return error.exit_code


def _main(argv: list[str], program: Program, origin: float) -> int:
    if (page := help_page(argv, program)) is not None:
        sys.stdout.write(page)
        return 0
    resolved = parse(argv, program)
    for note in resolved.notes:
        sys.stdout.write(f"{note}\n")
    sys.stdout.flush()
    if resolved.dry_run or not _is_default(resolved.config):
        _check_rooms(resolved.config)
    if resolved.dry_run:
        from agentrl.config.plan import describe

        sys.stdout.write(describe(resolved.config))
        return 0
    from agentrl.cluster.launch import launch

    return launch(resolved.config, origin)


def _is_default(config: RunConfig) -> bool:
    """Whether model, user code and passed-through flags are those that the project ships."""
    names = ("preset", "env", "hf_checkpoint", "dynamic_sampling_filter_path")
    ours = {name: getattr(config, name) for name in names}
    values = {"preset": DEFAULT} | PRESETS[DEFAULT].values
    shipped = {name: values.get(name) for name in names}
    return ours == shipped and not (config.megatron or config.sglang or config.router)


def _check_rooms(config: RunConfig) -> None:
    """What only the rooms can judge: the Env's and the filter's names, the model, Megatron's
    layout, refused flags.

    Raises ConfigError. Costs some seconds of imports, which the default job need not wait for.
    """
    from agentrl.actors.judge import load_filter
    from agentrl.envs.registry import load_env
    from agentrl.learner.megatron.architecture import Architecture
    from agentrl.learner.megatron.settings import MegatronSettings
    from agentrl.serving.launch import engine_command, router_command

    load_env(config.env or "single-turn")
    load_filter(config.dynamic_sampling_filter_path)
    model = str(config.hf_checkpoint)
    Architecture.from_checkpoint(Path(model)).check(MegatronSettings.from_config(config))
    # Commands are pure functions: making one without ports checks its settings.
    engine_command(
        model_path=model, port=0, name="check", device="cuda", extra=config.sglang, dtype="auto"
    )
    router_command(
        port=0, prometheus_port=0, turn_timeout_s=config.turn_timeout_s, extra=config.router
    )
