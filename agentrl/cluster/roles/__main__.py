"""`python -m agentrl.cluster.roles NAME SPEC`: become the process NAME of the run in SPEC.

NAME is `buffer`, `worker-I` or `learner-R`. The exit code says how it ended: 0 done, the error's
own `exit_code` when agentrl raised it, HOOK_FAILED when a function of the user's did, CUT_OFF when
another part failed it, 70 otherwise.
"""

import logging
import sys
from collections.abc import Callable
from pathlib import Path

from agentrl.cluster.spec import RunSpec, read_spec
from agentrl.cluster.supervision import CUT_OFF, HOOK_FAILED
from agentrl.errors import AgentRLError, HookError, InfrastructureError
from agentrl.telemetry.logging import setup_logging

_LOG = logging.getLogger("agentrl.cluster.roles")


def _run(name: str, spec: RunSpec) -> None:
    kind, _, index = name.partition("-")
    if kind == "buffer":
        from agentrl.cluster.roles.buffer import main

        main(spec)
    elif kind == "worker":
        from agentrl.cluster.roles.worker import main as worker

        worker(spec, name)
    elif kind == "learner" and spec.config.plays_only:
        from agentrl.cluster.roles.rollout_only import main as rollout_only

        rollout_only(spec, name)
    elif kind == "learner":
        from agentrl.cluster.roles.learner import main as learner

        learner(spec, int(index))
    else:
        raise ValueError(f"no process is called {name}")


def main(argv: list[str], run: Callable[[str, RunSpec], None] = _run) -> int:
    """Run the process, as `run` does by its name; returns its exit code."""
    name, path = argv
    setup_logging("INFO", name=name)
    logging.getLogger("megatron").setLevel(logging.WARNING)
    try:
        run(name, read_spec(Path(path)))
    except Exception as error:
        meant = _meant(error)
        if meant is None:
            _LOG.exception("%s stopped by a bug", name)
            return 70
        _LOG.error("%s stopped: %s", name, meant, exc_info=True)
        return _code_of(meant)
    return 0


def _code_of(error: AgentRLError) -> int:
    if isinstance(error, HookError):
        return HOOK_FAILED
    return CUT_OFF if isinstance(error, InfrastructureError) else error.exit_code


def _meant(error: BaseException) -> AgentRLError | None:
    """The error of agentrl's own that ended the process; a task group wraps what ends it."""
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, map(_meant, error.exceptions)), None)
    return error if isinstance(error, AgentRLError) else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
