"""A filter in slime's signature sees a judged group as slime's samples, and its answer is taken."""

from pathlib import Path
from typing import Any

import pytest

from agentrl.actors.failures import Failures
from agentrl.actors.group_scoring import FILTER, score_group
from agentrl.actors.slime_filter import OfSamples
from agentrl.actors.worker import Worker, WorkerSettings
from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.types import EpisodeSummary, Outcome, StopReason, Task
from agentrl.user_code import load
from agentrl.wire.messages import GroupScore, ScoreGroup

pytestmark = pytest.mark.anyio

MODEL = Path(PRESETS[DEFAULT].values["hf_checkpoint"])
ROW = {"question": "Two and two?", "gold": "4", "metadata": {"source": "sums"}}
OUTPUT = "from slime.rollout.filter_hub.base_types import DynamicFilterOutput\n"


def written(tmp_path: Path, body: str) -> str:
    """A file with the filter `keep` of that body."""
    path = tmp_path / "mine.py"
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    path.write_text(f"{OUTPUT}def keep(args, samples, **kwargs):\n{lines}\n")
    return str(path)


async def judged(place: str, **flags: Any) -> GroupScore:
    told = RunConfig(input_key="question", label_key="gold", **flags)
    summaries = [
        EpisodeSummary(0, Outcome.DONE, StopReason.TERMINATED, 1.0, {}, "it is 4", sampled=5),
        EpisodeSummary(2, Outcome.DONE, StopReason.RESPONSE_LIMIT, 0.0, {}, "it is", sampled=3),
    ]
    order = ScoreGroup("00000001", Task("t", ROW), summaries)
    return await score_group(order, load(FILTER, place), Failures(), flags=told)


async def test_it_sees_what_was_asked_said_and_earned(tmp_path: Path) -> None:
    body = """first, second = samples
assert (first.prompt, first.label, first.response) == ("Two and two?", "4", "it is 4")
assert first.metadata == {"source": "sums"}
assert [each.index for each in samples] == [0, 2]
assert [each.response_length for each in samples] == [5, 3]
assert [each.reward for each in samples] == [1.0, 0.0]
assert [each.get_reward_value(args) for each in samples] == [1.0, 0.0]
assert [each.status.value for each in samples] == ["completed", "truncated"]
assert args.n_samples_per_prompt == 7
return DynamicFilterOutput(keep=True)"""
    score = await judged(written(tmp_path, body), n_samples_per_prompt=7)
    assert (score.keep, score.reason, score.error) == (True, "", None)
    assert score.rewards == [1.0, 0.0]


async def test_a_reward_that_is_a_dict_has_its_key(tmp_path: Path) -> None:
    body = """assert [each.reward for each in samples] == [{"score": 1.0}, {"score": 0.0}]
assert samples[0].get_reward_value(args) == 1.0
return True"""
    assert (await judged(written(tmp_path, body), reward_key="score")).error is None


@pytest.mark.parametrize(
    ("said", "keep", "reason"),
    [
        ("DynamicFilterOutput(keep=False, reason='dull')", False, "dull"),
        ("DynamicFilterOutput(False, 'dull', keep_when_insufficient=True)", False, "dull"),
        ("False", False, ""),  # slime's older form
        ("True", True, ""),
    ],
)
async def test_its_answer_is_taken(tmp_path: Path, said: str, keep: bool, reason: str) -> None:
    score = await judged(written(tmp_path, f"return {said}"))
    assert (score.keep, score.reason, score.error) == (keep, reason, None)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return None", "it returned NoneType None"),
        ("return samples[0].tokens", "a sample has no 'tokens' here"),
        ("return args.nothing", "args has no 'nothing'"),
        ("raise ValueError('why')", "ValueError: why"),
    ],
)
async def test_what_goes_wrong_in_it_is_the_groups_fate(
    tmp_path: Path, body: str, said: str
) -> None:
    error = (await judged(written(tmp_path, body))).error
    assert error is not None
    assert said in error
    assert "keep" in error


@pytest.mark.parametrize("call", ["args", "args, samples, more", "samples, args, *, also"])
async def test_another_signature_is_refused_before_the_start(tmp_path: Path, call: str) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(f"def keep({call}):\n    return True\n")
    with pytest.raises(ConfigError, match="keep"):
        load(FILTER, str(path))


@pytest.mark.parametrize("env", ["single-turn", "guess", "program"])
def test_episodes_report_what_they_said_to_such_a_filter_alone(tmp_path: Path, env: str) -> None:
    (tmp_path / "ours.py").write_text("def keep(rewards, task):\n    return True\n")
    args = {"command": ["true"]} if env == "program" else {}
    for place, wanted in ((written(tmp_path, "return True"), True), ("ours.py", False)):
        config = RunConfig(
            env=env,
            env_args=args,
            hf_checkpoint=str(MODEL),
            dynamic_sampling_filter_path=str(tmp_path / place),
        )
        settings = WorkerSettings.from_config(config, MODEL, 512, {})
        worker = Worker(settings)
        assert isinstance(worker._filter, OfSamples) is wanted
        strategy = worker._ways.of(Task("t", {})).strategy
        assert strategy.reports_answers is wanted  # type: ignore[attr-defined]
        assert settings.context.run_flags is not None
