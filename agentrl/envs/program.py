"""`program`: an agent that is a program of its own, in any language, as a rollout.

    stdin                 the task, a row of the task source, as one JSON object
    OPENAI_BASE_URL       where its model is; OPENAI_API_KEY is this episode's
    AGENTRL_SEED          the same for every attempt at this episode
    last line of stdout   the reward: a number, or {"reward": ..., "metrics": {...}}

Whatever else it prints is its own. It runs with the worker's rights and environment, and is ended,
with all that it started, when its episode is.
"""

import os
import shutil
from typing import Any

import msgspec

from agentrl.envs.messages import Step
from agentrl.envs.processes import Ended, run_program
from agentrl.envs.rollout import Chat, Rollout
from agentrl.errors import ConfigError, EnvError

__all__ = ["Program"]

_USAGE = """--env program wants --env-args '{"argv": ["python", "agent.py"]}'"""
_KEY = "OPENAI_API_KEY"
#: Characters of a program's last words in a report.
_MAX_SHOWN = 1000


class _Outcome(msgspec.Struct, forbid_unknown_fields=True):
    reward: float
    metrics: dict[str, float] = {}
    truncated: bool = False
    rewards: dict[str, float] = {}


class Program(Rollout):
    """Runs `argv` for each episode, `variables` added to its environment.

    Raises ConfigError when `argv` is no command line of a program that can be found.
    """

    def __init__(self, *, argv: object = None, variables: dict[str, str] | None = None) -> None:
        super().__init__()
        try:
            self._argv = msgspec.convert(argv, list[str])
            self._variables = msgspec.convert(variables or {}, dict[str, str])
        except msgspec.ValidationError as error:
            raise ConfigError(f"{_USAGE}: {error}") from error
        if not self._argv:
            raise ConfigError(f"{_USAGE}; argv is empty")
        if shutil.which(self._argv[0]) is None:
            raise ConfigError(f"--env program: there is no program {self._argv[0]!r} to run")

    async def solve(self, task: dict[str, Any], chat: Chat) -> Step:
        """Run the program to its end. Raises EnvError when it fails or tells no reward."""
        environment = os.environ | self._variables | _given(chat)
        ended = await run_program(self._argv, msgspec.json.encode(task), environment, _KEY)
        if ended.code != 0:
            raise EnvError(f"{self._argv[0]} ended with exit code {ended.code}: {_last(ended)}")
        return self._outcome(ended)

    def _outcome(self, ended: Ended) -> Step:
        lines = [line for line in ended.stdout.splitlines() if line.strip()]
        last = lines[-1] if lines else ""
        try:
            said = msgspec.json.decode(last.encode("utf-8", "replace"), type=float | _Outcome)
        except (msgspec.MsgspecError, ValueError) as error:
            raise EnvError(
                f"{self._argv[0]}: the last line of its output is {last[:200]!r}, which is "
                f'no reward ({error}); print a number, or {{"reward": 1.0}}'
            ) from error
        if isinstance(said, float):
            return Step(reward=said)
        return Step(
            reward=said.reward,
            metrics=said.metrics,
            truncated=said.truncated,
            rewards=said.rewards,
        )


def _given(chat: Chat) -> dict[str, str]:
    """The variables that lead to the model; a proxy of the host cannot reach loopback."""
    direct = ",".join(filter(None, [os.environ.get("NO_PROXY"), "127.0.0.1"]))
    return {
        "OPENAI_BASE_URL": chat.base_url,
        _KEY: chat.api_key,
        "AGENTRL_SEED": str(chat.seed),
        "NO_PROXY": direct,
        "no_proxy": direct,
    }


def _last(ended: Ended) -> str:
    return (ended.stderr or ended.stdout).strip()[-_MAX_SHOWN:] or "it printed nothing"
