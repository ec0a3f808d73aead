"""`--rollout-all-samples-process-path` in the driver: the function is called for each lease and at
the end, and whatever becomes of it the run goes on."""

import json
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from agentrl.types import EpisodeSummary, Outcome, StopReason, Task
from agentrl.wire.messages import ScoredGroup
from tests.integration.paper_cluster import Play, playing

MINE = """\
import os

calls = 0

def save(args, all_samples, data_source):
    global calls
    calls += 1
    print(calls, [group[0].kept for group in all_samples], flush=True)
    if args.rollout_seed == 1:
        os._exit(3)
    if args.rollout_seed == 2:
        data_source.add_samples(all_samples)
    from slime.observability.logging_utils import log
    log(args, {"mine/seen": sum(map(len, all_samples))})
"""


async def judged(play: Play, mint: int, *, kept: bool) -> None:
    episode = EpisodeSummary(0, Outcome.DONE, StopReason.TERMINATED, 1.0, {}, "four")
    group = ScoredGroup(mint, Task(str(mint), {"input": "2+2"}), [episode], kept)
    await play.tell("scored", **msgspec.structs.asdict(group))


@pytest.mark.parametrize(
    ("seed", "said"),
    [
        (0, ""),
        (1, "mine.py:save: the function ended its process; see "),
        (2, "mine.py:save: EnvError: data_source gives a function of --rollout-all-samples-"),
    ],
)
def test_it_is_called_for_each_lease_and_at_the_end(
    tmp_path: Path, seed: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    flags: dict[str, Any] = {
        "rollout_all_samples_process_path": f"{tmp_path / 'mine.py'}:save",
        "loss_type": "policy_loss",
        "rollout_seed": seed,
    }

    async def main() -> None:
        async with playing(tmp_path, **flags) as (play, start):
            await start()
            await play.published(0, 0)
            await judged(play, 1, kept=True)
            await judged(play, 2, kept=False)
            await play.tell("lease", number=1, groups=1, last=True, stats={})
            await judged(play, 3, kept=False)
            await play.learner_ends()
            assert play.failure is None

    anyio.run(main)
    printed = (tmp_path / "r/logs/all-samples.log").read_text()
    calls = ("1", "2") if seed != 1 else ("1", "1")  # a process that ended has forgotten its count
    assert printed.splitlines() == [f"{calls[0]} [True, False]", f"{calls[1]} [False]"]
    found = [json.loads(line) for line in (tmp_path / "r/metrics.jsonl").read_text().splitlines()]
    figures = [(line["step"], line["logged"]) for line in found if "logged" in line]
    assert figures == ([] if seed else [(1, {"mine/seen": 2.0}), (1, {"mine/seen": 1.0})])
    out = " ".join(capsys.readouterr().out.split())
    assert out.count("note: --rollout-all-samples-process-path") == bool(said)
    assert said in out
