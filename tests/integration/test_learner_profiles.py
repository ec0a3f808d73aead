"""Traces of torch's profiler, from the learner's real loop: what they hold, and where they go."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.config.flags.profiling import ProfileTarget
from agentrl.config.run import RunConfig
from agentrl.learner.profiling import Profiler, open_profiler
from agentrl.wire.messages import Stepped
from tests.integration.learner_world import World, learn

#: Two steps, so that the second one's log-probabilities are a pass of their own.
TWO_STEPS: dict[str, Any] = {"num_steps_per_rollout": 2}


def train(profiler: Profiler, num_iterations: int = 4, **flags: Any) -> World:
    world = World([2] * num_iterations)
    learn(world, profiler=profiler, **TWO_STEPS, **flags)
    return world


def traces(folder: Path) -> dict[str, list[str]]:
    """Of each trace in `folder` the ranges that somebody named, in their order."""
    found = {}
    for path in sorted(folder.iterdir()):
        with gzip.open(path) as file:
            events = json.load(file)["traceEvents"]
        named = [event for event in events if event.get("cat") == "user_annotation"]
        named.sort(key=lambda event: event["ts"])
        steps = [e["name"] for e in named if e["name"].startswith(("train_", "ProfilerStep"))]
        assert any("aten::" in event["name"] for event in events), "no work of torch's"
        found[path.name] = steps
    return found


def profiler(folder: Path, rank: int, *targets: ProfileTarget) -> Profiler:
    """Of two of the iterations."""
    config = RunConfig(
        use_pytorch_profiler=True,
        profile_step_start=1,
        profile_step_end=3,
        profile_target=list(targets),
    )
    return open_profiler(config, folder, rank)


def test_whole_iterations_have_one_trace_with_their_parts_in_it(tmp_path: Path) -> None:
    train(profiler(tmp_path, 0, "train_overall", "train_actor"))
    parts = ["train_log_probs", "train_actor"]
    assert traces(tmp_path / "profile") == {
        "train_overall_rank_0.3.pt.trace.json.gz": [
            *("ProfilerStep#1", *parts),
            *("ProfilerStep#2", *parts),
        ]
    }


def test_a_part_alone_has_a_trace_of_each_recorded_iteration(tmp_path: Path) -> None:
    train(profiler(tmp_path, 5, "train_actor", "train_log_probs"))
    assert [*traces(tmp_path / "profile")] == [
        "train_actor_rank_5.2.pt.trace.json.gz",
        "train_actor_rank_5.3.pt.trace.json.gz",
        "train_log_probs_rank_5.2.pt.trace.json.gz",
        "train_log_probs_rank_5.3.pt.trace.json.gz",
    ]


def test_traces_go_where_they_are_told_to(tmp_path: Path) -> None:
    config = RunConfig(
        use_pytorch_profiler=True,
        profile_target=["train_actor"],
        profile_step_start=0,
        profile_step_end=1,
        tensorboard_dir=str(tmp_path / "far"),
    )
    train(open_profiler(config, tmp_path / "run", 0), 1)
    assert [*traces(tmp_path / "far")] == ["train_actor_rank_0.1.pt.trace.json.gz"]
    assert not (tmp_path / "run").exists()


def test_a_run_that_ends_early_has_a_trace_of_what_there_was(tmp_path: Path) -> None:
    config = RunConfig(use_pytorch_profiler=True, profile_step_start=1, profile_step_end=9)
    train(open_profiler(config, tmp_path, 0), 2)
    assert [*traces(tmp_path / "profile")] == ["train_overall_rank_0.2.pt.trace.json.gz"]


def test_others_may_not_read_a_trace_of_a_private_run(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    config = RunConfig(use_pytorch_profiler=True, profile_step_start=1, profile_step_end=2)
    train(open_profiler(config, tmp_path, 0), 2)
    (written,) = (tmp_path / "profile").iterdir()
    assert written.stat().st_mode & 0o777 == 0o600


def test_a_run_that_is_recorded_trains_the_same(tmp_path: Path) -> None:
    _, (usual,) = learn(World([2] * 2), **TWO_STEPS)
    config = RunConfig(use_pytorch_profiler=True, profile_step_start=0, profile_step_end=2)
    profiler = open_profiler(config, tmp_path, 0)
    _, (recorded,) = learn(World([2] * 2), profiler=profiler, **TWO_STEPS)
    assert torch.equal(recorded.table, usual.table)


def test_nothing_is_recorded_unless_it_is_asked_for(tmp_path: Path) -> None:
    config = RunConfig(profile_step_start=0, profile_step_end=9)
    train(open_profiler(config, tmp_path, 0), 1)
    assert not (tmp_path / "profile").exists()


@pytest.mark.parametrize("target", ["train_overall", "train_actor"])
def test_a_trace_that_cannot_be_written_is_told_once_and_ends_nothing(
    target: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "profile").write_text("a file where the folder would be")
    config = RunConfig(
        use_pytorch_profiler=True,
        profile_target=[target],
        profile_step_start=1,
        profile_step_end=3,
    )
    world = train(open_profiler(config, tmp_path, 0))
    assert len(world.of(Stepped)) == 4
    told = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert len([line for line in told if "no profile (--use-pytorch-profiler)" in line]) == 1
