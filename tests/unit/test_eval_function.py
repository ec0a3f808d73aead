"""`--eval-function-path`: a call of the user's function plays all evaluation sets, and what it
returns is told as the scores of sets that the run plays itself."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentrl.buffer.called_sets import told_of_call
from agentrl.envs.slime_stand_in.async_utils import run
from agentrl.envs.slime_stand_in.rm_hub import async_rm
from agentrl.envs.slime_stand_in.rollout_outputs import RolloutFnEvalOutput
from agentrl.envs.slime_stand_in.types import Sample
from agentrl.types import EpisodeReport, Generation, Outcome, SamplingParams
from tests.unit.eval_function_ground import STEP, called, rows, said
from tests.unit.generate_ground import CONFIG
from tests.unit.rollout_ground import Policy

pytestmark = pytest.mark.anyio


async def two_sets(args: Any, rollout_id: int, data_source: Any, evaluation: bool) -> Any:
    """Two tasks of two samples, and one of one."""
    texts = [await said(args) for _ in range(5)]
    samples = [Sample(prompt=f"{at // 2}", response="\\boxed{4}") for at in range(4)]
    twice = {"rewards": [1, 0, 0.0, 0.0], "truncated": [True, False, False, False]}
    return RolloutFnEvalOutput(
        data={
            "twice": {**twice, "samples": samples},
            "once": {"rewards": [float(texts[4].startswith("Paris"))]},
        },
        metrics={"eval/called": rollout_id, "said": evaluation},
    )


def sets_of(report: EpisodeReport) -> dict[str, dict[str, Any]]:
    """What is told of each set."""
    told: Any = told_of_call(report)["sets"]
    return {one["name"]: one for one in told}


async def test_each_set_that_a_function_returns_has_its_scores() -> None:
    config = msgspec.structs.replace(CONFIG, n_samples_per_eval_prompt=2)
    policy = Policy(lambda text: "Paris<|im_end|>")
    report = await called(two_sets, policy, config=config)
    assert report.outcome is Outcome.DONE
    assert told_of_call(report)["figures"] == {"eval/called": STEP, "said": 1.0}
    twice, once = sets_of(report)["twice"], sets_of(report)["once"]
    assert (twice["n"], twice["failed"], twice["score"]) == (4, 0, 0.25)
    assert (twice["avg@2"], twice["pass@1"], twice["pass@2"]) == (0.25, 0.25, 0.5)
    assert (twice["maj@2"], twice["metric/truncated"]) == (0.25, 0.25)
    assert twice["pass@2_ci95"] == pytest.approx(1.96 * 0.5)
    assert (once["n"], once["score"]) == (1, 1.0)
    assert "pass@1" not in once
    # the scripted policy is one version later at each answer
    assert report.evaluated is not None
    versions = [version for version, _ in report.evaluated.versions]
    assert (once["version_min"], once["version_max"]) == (min(versions), max(versions))
    assert len(versions) == 5


async def test_rewards_that_are_not_of_whole_tasks_have_a_score_and_no_pass_rate() -> None:
    config = msgspec.structs.replace(CONFIG, n_samples_per_eval_prompt=2)

    def mixed(args: Any, rollout_id: int, data_source: Any, evaluation: bool) -> Any:
        alternating = [Sample(prompt=str(at % 2)) for at in range(4)]
        return {
            "odd": {"rewards": [1.0, 1.0, 0.0]},
            "mixed": {"rewards": [1.0, 0.0, 1.0, 0.0], "samples": alternating},
        }

    for one in sets_of(await called(mixed, config=config)).values():
        assert one["score"] > 0
        assert "pass@1" not in one


class Noting(Policy):
    """Knows how each answer was to be sampled."""

    def __init__(self) -> None:
        super().__init__(lambda text: "Paris<|im_end|>")
        self.seen: list[tuple[float, float, int]] = []

    async def generate(
        self, input_ids: Sequence[int], sampling: SamplingParams, *, routing_key: str, priority: int
    ) -> Generation:
        self.seen.append((sampling.temperature, sampling.top_p, sampling.max_new_tokens))
        return await super().generate(
            input_ids, sampling, routing_key=routing_key, priority=priority
        )


async def test_a_request_says_how_it_is_sampled_and_else_the_flags_do() -> None:
    policy = Noting()

    def function(args: Any, rollout_id: int, data_source: Any, evaluation: bool) -> Any:
        run(said(args))
        run(said(args, temperature=0.25, top_p=0.5, max_new_tokens=7))
        return {"set": {"rewards": [1]}}

    assert (await called(function, policy)).outcome is Outcome.DONE
    assert policy.seen == [(1.0, 1.0, 400), (0.25, 0.5, 7)]


async def test_the_sets_that_flags_name_are_its_datasets(tmp_path: Path) -> None:
    paths = [str(rows(tmp_path, name)) for name in ("a", "b")]
    file = tmp_path / "sets.yaml"
    sets = [
        {"name": "a", "path": paths[0], "n_samples_per_eval_prompt": 3, "temperature": 0.5},
        {"name": "b", "path": paths[1], "rm_type": "math", "max_response_len": 9},
    ]
    file.write_bytes(msgspec.yaml.encode({"eval": {"datasets": sets}}))
    config = msgspec.structs.replace(
        CONFIG, eval_config=str(file), eval_function_path="mine.py", env="single-turn"
    )
    seen: list[Any] = []

    def function(args: Any, rollout_id: int, data_source: Any, evaluation: bool) -> Any:
        seen.extend(args.eval_datasets)
        assert args.eval_prompt_data == ["a", paths[0], "b", paths[1]]
        return {one.name: {"rewards": [0.0] * 6} for one in args.eval_datasets}

    report = await called(function, config=config)
    assert report.error is None
    assert [one.path for one in seen] == paths
    assert [one.n_samples_per_eval_prompt for one in seen] == [3, 1]
    assert [one.temperature for one in seen] == [0.5, 1.0]
    assert seen[1].max_response_len == 9
    assert seen[1].inject_metadata({"at": 1}) == {"at": 1, "rm_type": "math"}
    assert "pass@3" in sets_of(report)["a"]
    assert "pass@1" not in sets_of(report)["b"]


async def test_it_asks_for_the_reward_of_the_run() -> None:
    def function(args: Any, rollout_id: int, data_source: Any, evaluation: bool) -> Any:
        assert threading.current_thread().name == "eval-function"
        samples = [Sample(prompt="2+2?", response=text, label="4") for text in ("4", "5")]
        return {"set": {"rewards": [run(async_rm(args, each)) for each in samples]}}

    report = await called(function, rm_type="f1")
    assert report.error is None
    assert report.evaluated is not None
    assert report.evaluated.sets["set"].rewards == [1.0, 0.0]


async def test_the_reward_of_another_environment_is_not_guessed() -> None:
    config = msgspec.structs.replace(CONFIG, env="guess")

    def function(args: Any, rollout_id: int, data_source: Any, evaluation: bool) -> Any:
        return run(async_rm(args, Sample(prompt="2+2?", response="4", label="4")))

    report = await called(function, config=config)
    assert "the rewards of this run are those of its environments" in str(report.error)
