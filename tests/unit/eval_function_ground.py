"""An evaluation function of slime's signature, called as a worker calls it, against a scripted
policy."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from agentrl.actors.batches.eval_calls import EvalCalls
from agentrl.actors.endpoint.server import Endpoint
from agentrl.actors.limits import Limits
from agentrl.actors.player import Player
from agentrl.config.run import RunConfig
from agentrl.envs.env import EnvContext
from agentrl.envs.eval_function import CALLED, EvalFunction, call_of
from agentrl.envs.slime_stand_in.http_utils import post
from agentrl.types import EpisodeReport, TurnClient
from tests.unit.generate_asking import url_of
from tests.unit.generate_ground import CONFIG
from tests.unit.rollout_ground import ASSIGNMENT, CHAT, LIMITS, Policy

#: Iterations before the call.
STEP = 4
PROMPT = "What is the capital of France?"


async def said(args: Any, prompt: str = PROMPT, **params: Any) -> str:
    """The text of an answer, asked as the run samples but for `params`."""
    sampling = {**args.sampling_params, **params}
    output: dict[str, Any] = await post(
        url_of(args), {"text": prompt, "sampling_params": sampling}, max_retries=1
    )
    return str(output["text"])


def evaluate(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    """What stands in for the function of a test."""
    raise NotImplementedError


async def called(
    function: Callable[..., Any],
    policy: TurnClient | None = None,
    *,
    config: RunConfig = CONFIG,
    limits: Limits = LIMITS,
    **reward: Any,
) -> EpisodeReport:
    """The report of a call."""
    context = EnvContext(run_flags=config)
    given = EvalFunction(f"{__name__}:evaluate", context, reward)
    given.function = function
    assignment = msgspec.structs.replace(ASSIGNMENT, task=call_of(STEP), evaluation=CALLED)
    async with Endpoint() as endpoint:
        player = Player(EvalCalls(given, CHAT, limits, endpoint))
        played = await player.play(assignment, policy or Policy(lambda text: "Paris<|im_end|>"))
    assert not played.columns
    return played.report


def rows(folder: Path, name: str, num: int = 2) -> Path:
    """A file of an evaluation set."""
    path = folder / f"{name}.jsonl"
    path.write_text('{"input": "2+2?", "label": "4"}\n' * num)
    return path
