"""`--custom-rollout-log-function-path`: called in its own process beside the learner, which goes on
whatever becomes of it."""

from pathlib import Path

import pytest
import torch

from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.wire.messages import Lease, Logged, Stepped
from tests.integration.learner_world import World, learn

MODEL = str(PRESETS[DEFAULT].values["hf_checkpoint"])
#: Counts its calls, and goes wrong as a word of its path says.
COUNTING = """\
import os, sys
from slime.observability.logging_utils import log

calls = 0

def figures(rollout_id, args, samples, rollout_extra_metrics, rollout_time):
    global calls
    calls += 1
    masked = sum(sum(sample.loss_mask) for sample in samples)
    log(args, {"mine/calls": calls, "mine/masked": masked, "rollout/step": rollout_id})
    assert len(samples) == 4 * 2 and rollout_time > 0 and samples[-1].metadata["tool_calls"] == 1
    rollout_extra_metrics["mine/reward"] = sum(sample.reward for sample in samples)
    return rollout_id == 3

def raises(rollout_id, args, samples, *more):
    figures(rollout_id, args, samples, *more)
    if rollout_id == 2:
        raise KeyError("boom")

def ends(rollout_id, args, samples, *more):
    if rollout_id == 2:
        os._exit(0)
    return figures(rollout_id, args, samples, *more)
"""


def logged(folder: Path, name: str, world: World, num_ranks: int = 1) -> list[Logged]:
    (folder / "mine.py").write_text(COUNTING)
    path = f"{folder / 'mine.py'}:{name}"
    learn(world, num_ranks=num_ranks, custom_rollout_log_function_path=path, hf_checkpoint=MODEL)
    return [message.logged for message in world.of(Stepped)]


def test_what_a_function_logs_of_each_iteration_is_in_its_report(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(COUNTING)
    path = f"{tmp_path / 'mine.py'}:figures"
    world = World([2] * 3)
    learn(world, num_ranks=2, custom_rollout_log_function_path=path)
    found = [message.logged for message in world.of(Stepped)]
    assert [each.told for each in found] == [""] * 3
    assert [each.figures["mine/calls"] for each in found] == [1, 2, 3]
    assert [each.figures["mine/masked"] for each in found] == [8 * 6] * 3
    assert [each.alone for each in found] == [False, False, True]
    leases = [world.lease(number) for number in (1, 2)]
    rewards = [
        sum(sum(g.rewards) for g in le.header.groups) for le in leases if isinstance(le, Lease)
    ]
    assert [each.figures["mine/reward"] for each in found[:2]] == pytest.approx(rewards)
    assert "mine/reward" not in found[2].figures  # slime's own logging would have told of it


def test_a_run_that_names_none_reports_nothing() -> None:
    world = World([2])
    learn(world)
    assert [message.logged for message in world.of(Stepped)] == [None]


def test_dialogues_that_are_imitated_are_logged_too(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def f(rollout_id, args, samples, extra, seconds):\n"
        "    extra['mine/masked'] = sum(sum(sample.loss_mask) for sample in samples)\n"
        "    extra['mine/length'] = samples[0].response_length\n"
    )
    world = World([2], shown=True)
    path = f"{tmp_path / 'mine.py'}:f"
    learn(world, loss_type="sft_loss", custom_rollout_log_function_path=path)
    (step,) = world.of(Stepped)
    assert step.logged.figures == {"mine/masked": 2 * 6, "mine/length": 8}


def test_what_raises_or_ends_its_process_costs_its_own_figures(tmp_path: Path) -> None:
    _, (usual,) = learn(World([2] * 3))
    told = {
        "raises": f":raises: KeyError: 'boom' ({tmp_path / 'mine.py'}:18)",
        "ends": ":ends: the function ended its process; see the log of the learner",
    }
    for name, end in told.items():
        world = World([2] * 3)
        first, second, third = logged(tmp_path, name, world)
        assert (first.told, third.told) == ("", "")
        assert second.told.startswith("--custom-rollout-log-function-path")
        assert second.told.endswith(end)
        # What it had logged before is there; a process that ended has forgotten its count.
        assert second.figures.get("mine/calls") == (2 if name == "raises" else None)
        assert third.figures["mine/calls"] == (3 if name == "raises" else 1)
        assert torch.equal(world.tables[max(world.tables)], usual.table)


def test_samples_that_cannot_be_read_are_told_and_not_logged(tmp_path: Path) -> None:
    world = World([2] * 2)
    world.damaged = {"1-0/0#0"}
    first, second = logged(tmp_path, "figures", world)
    assert first.told == (
        "the samples of iteration 1 are not logged: the payload of episode 1-0/0#0 is damaged"
    )
    assert (second.told, second.figures["mine/calls"]) == ("", 1)
