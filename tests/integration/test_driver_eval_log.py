"""`--custom-eval-rollout-log-function-path` in the driver: its figures are where those of the run
are, and whatever becomes of it the run goes on."""

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentrl.types import Task
from agentrl.wire.messages import Evaluate, Event
from tests.integration.paper_cluster import playing

MINE = """\
import os

def log(rollout_id, args, data, extra_metrics):
    print("asked", flush=True)
    if args.rollout_seed == 1:
        os._exit(3)
    extra_metrics["mine/first"] = float(data["held"]["samples"][0].response == "four")
"""


@pytest.mark.parametrize("ends", [False, True])
def test_an_evaluation_is_recorded_with_what_a_function_logs_or_without(
    tmp_path: Path, ends: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    flags: dict[str, Any] = {
        "custom_eval_rollout_log_function_path": f"{tmp_path / 'mine.py'}:log",
        "loss_type": "policy_loss",
        "rollout_seed": int(ends),
    }

    async def main() -> None:
        sets = {"held": [Task("1", {"input": "2+2", "label": "4"})]}
        async with playing(tmp_path, eval_sets=sets, **flags) as (play, start):
            data = {"id": "held@0-pinned", "name": "held", "n": 1, "failed": 0, "score": 0.5}
            data |= {"version_min": 0, "version_max": 0}
            episode = {"task": 0, "index": 0, "reward": 0.5, "stop_reason": "terminated"}
            data["episodes"] = [episode | {"answer": "four"}]
            play.buffer.answers[Evaluate] = Event("evaluation", data)
            await start()
            await play.published(0, 0)
            await play.learner_ends()
            assert play.failure is None

    anyio.run(main)
    lines = [json.loads(line) for line in (tmp_path / "r/metrics.jsonl").read_text().splitlines()]
    assert [line["eval"].get("held", {}).get("score") for line in lines][:1] == [0.5]
    assert [line["logged"] for line in lines[1:]] == ([] if ends else [{"mine/first": 1.0}])
    assert (tmp_path / "r/logs/eval-log.log").read_text() == "asked\n"
    note = f"mine.py:log: the function ended its process; see {tmp_path / 'r/logs/eval-log.log'}"
    assert (note in capsys.readouterr().out) == ends
