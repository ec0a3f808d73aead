"""`--custom-eval-rollout-log-function-path`: the driver asks it about all sets at once."""

import os
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.to_thread
import pytest

from agentrl.cluster.eval_log import EvalLog
from agentrl.cluster.evaluator import Evaluator
from agentrl.cluster.events import RunState
from agentrl.cluster.requests import Requests
from agentrl.config.eval_sets import EvalSet
from agentrl.config.run import RunConfig
from agentrl.types import Task
from agentrl.wire.messages import Evaluate, Event

pytestmark = pytest.mark.anyio

SETS = {"heldout": [Task("a", {"label": "4"}), Task("b", {})], "hard": [Task("c", {})]}
SEEING = """\
def f(rollout_id, args, data, extra_metrics):
    from slime.observability.logging_utils import log
    first = data["heldout"]["samples"][0]
    assert (first.label, first.response) == ("4", "four")
    rewards = {f"mine/{name}": sum(found["rewards"]) for name, found in data.items()}
    log(args, rewards | {"mine/step": rollout_id}, step_key="eval/step")
    return rollout_id == 2
"""


def told(name: str, step: int, rewards: list[float], **more: Any) -> dict[str, Any]:
    """The event of an evaluation."""
    episodes = [
        {"task": t, "index": 0, "reward": r, "stop_reason": "terminated", "answer": "four"}
        for t, r in enumerate(rewards)
    ]
    return {"name": name, "id": f"{name}@{step}-pinned", "episodes": episodes, **more}


class Site:
    """A buffer that answers what it is asked, and a recorder that notes what it is told."""

    def __init__(self, log: EvalLog, config: RunConfig, *, cancelled: bool = False) -> None:
        self.state = RunState()
        self.asked: list[Evaluate] = []
        self.noted: list[tuple[Any, ...]] = []
        self._more = {"cancelled": True} if cancelled else {}
        self.requests = Requests(cast(Any, self), self.state)
        self.evaluator = Evaluator(
            config, SETS, self.requests, self.state, cast(Any, self), (), log
        )

    async def deliver(self, order: Evaluate) -> None:
        self.asked.append(order)
        rewards = [1.0, 0.5][: len(order.tasks)]
        data = told(order.name, self.state.iteration, rewards, **self._more)
        self.state.apply(Event("evaluation", data))

    def note(self, text: str) -> None: ...

    def evaluation(
        self, step: int, data: dict[str, Any], *, is_greedy: bool, is_shown: bool
    ) -> None:
        self.noted.append((step, data["name"], is_shown))

    def logged(
        self, step: int, figures: dict[str, float], told: str, *, is_over: bool = False
    ) -> None:
        self.noted.append((step, figures, told))


async def test_a_function_sees_all_sets_of_an_evaluation(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SEEING)
    config = RunConfig(custom_eval_rollout_log_function_path=f"{tmp_path / 'mine.py'}:f")
    log = EvalLog(config, tmp_path / "log")
    site = Site(log, config)
    for step in (1, 2):
        site.state.iteration = step
        await site.evaluator.evaluate()
        figures = {"mine/heldout": 1.5, "mine/hard": 1.0, "mine/step": float(step)}
        sets = [(step, name, step == 1) for name in SETS]
        assert site.noted == [*sets, (step, figures, "")]
        site.noted.clear()
    assert all(order.tells_episodes for order in site.asked)
    assert not any(site.state.evaluations.values())  # nothing of it is kept
    log.close()


async def test_samples_of_a_set_have_its_own_label_and_reward(tmp_path: Path) -> None:
    """Those of a set that names keys, and of one that the Env of a part brings."""
    (tmp_path / "mine.py").write_text(
        "def f(rollout_id, args, data, extra_metrics):\n"
        "    for name, found in data.items():\n"
        "        sample = found['samples'][0]\n"
        "        assert sample.label == '4', (name, sample.label)\n"
        "        extra_metrics[name] = sample.get_reward_value(args)\n"
    )
    part = {"name": "sums", "prompt_data": "a", "label_key": "answer"}
    part |= {"env": "single-turn", "rm_type": "dapo", "reward_key": "right"}
    config = RunConfig(
        custom_eval_rollout_log_function_path=f"{tmp_path / 'mine.py'}:f",
        env_mix={"parts": [part]},
    )
    own = EvalSet("named", RunConfig(label_key="gold"))
    sets = {
        "named": [Task("a", {"gold": "4"})],
        "sums-brought": [Task("b", {"answer": "4"}, part="sums")],
    }
    log = EvalLog(config, tmp_path / "log", [own])
    found = await log.told(1, sets, [told(name, 1, [0.5]) for name in sets])
    assert (found.told, found.figures) == ("", {"named": 0.5, "sums-brought": 0.5})
    log.close()


async def test_the_loop_goes_on_while_it_is_waited_for(tmp_path: Path) -> None:
    body = "    open(args.hf_checkpoint).read()\n"
    (tmp_path / "mine.py").write_text(f"def f(rollout_id, args, data, extra_metrics):\n{body}")
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    path = f"{tmp_path / 'mine.py'}:f"
    config = RunConfig(custom_eval_rollout_log_function_path=path, hf_checkpoint=str(gate))
    log = EvalLog(config, tmp_path / "log")
    site = Site(log, config)
    async with anyio.create_task_group() as group:
        group.start_soon(site.evaluator.evaluate)
        # Opening it waits for the function to read it, in a thread beside this loop.
        await anyio.to_thread.run_sync(lambda: gate.write_text("on"))
    assert site.noted[-1] == (0, {}, "")
    log.close()


async def test_one_that_the_end_of_the_run_cut_off_is_not_told(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SEEING)
    config = RunConfig(custom_eval_rollout_log_function_path=f"{tmp_path / 'mine.py'}:f")
    site = Site(EvalLog(config, tmp_path / "log"), config, cancelled=True)
    await site.evaluator.evaluate()
    assert site.noted == [(0, "heldout", True), (0, "hard", True), (0, {}, "")]
    assert not (tmp_path / "log").exists()


async def test_without_a_function_no_episode_is_told_of(tmp_path: Path) -> None:
    config = RunConfig()
    site = Site(EvalLog(config, tmp_path / "log"), config)
    await site.evaluator.evaluate()
    assert site.noted == [(0, "heldout", True), (0, "hard", True)]
    assert not any(order.tells_episodes for order in site.asked)
