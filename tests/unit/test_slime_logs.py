"""Log functions of slime's users: what they are given, and what is taken of what they log."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentrl.columns import COLUMNS, EXCLUDED
from agentrl.config.args import Args
from agentrl.config.run import RunConfig
from agentrl.envs.slime_logs.functions import ALL_SAMPLES, EVALUATION, MAX_FIGURES, logged
from agentrl.envs.slime_logs.samples import ScoredEpisode, keys_of, of_groups, samples_of, scored
from agentrl.envs.slime_stand_in.logging_utils import log
from agentrl.envs.slime_stand_in.types import Sample
from agentrl.rollout_file import Rollouts, write_rollouts
from agentrl.telemetry.trackers.base import TrackerRow
from agentrl.types import (
    EpisodeId,
    EpisodeSummary,
    GroupRows,
    LeaseHeader,
    Outcome,
    PayloadRef,
    SpanKind,
    StopReason,
    Task,
    TrajectoryMeta,
    TrajectoryRow,
)
from agentrl.wire.messages import Logged, ScoredGroup

pytestmark = pytest.mark.slow

COLUMN_VALUES: dict[str, list[Any]] = {
    "tokens": [5, 6, 7, 8, 9],
    "kinds": [SpanKind.CONTROL, *[SpanKind.SAMPLED] * 2, SpanKind.UNTRUSTED, SpanKind.SAMPLED],
    "logprobs": [0.0, -0.5, -1.0, 0.0, -2.0],
    "versions": [-1, 3, 3, -1, 4],
    "turns": [-1, 0, 0, 0, 1],
    EXCLUDED.name: [0, 0, 0, 0, 1],
}
ROW = {"question": "2+2", "answer": "4", "metadata": {"data_source": "sums"}}


def lease(path: Path, *, stops: list[StopReason], parts: Sequence[str] = ("",)) -> None:
    """A group of each part, of as many episodes, each of the columns above."""
    ids = [EpisodeId("00000001", index) for index in range(len(stops))]
    meta = TrajectoryMeta(5, 3, 2, 1.0, [(3, 2), (4, 1)], columns=(EXCLUDED,))
    groups = [
        GroupRows(
            group="00000001",
            mint=1,
            task="a",
            episodes=ids,
            rewards=[0.5] * len(ids),
            metrics=[{"reward.style": 2.0}] * len(ids),
            trajectories=[TrajectoryRow(id, meta, PayloadRef("", 0, 0, 0, 0)) for id in ids],
            stop_reasons=stops,
            row=ROW,
            part=part,
        )
        for part in parts
    ]
    layout = (*COLUMNS.values(), EXCLUDED)
    columns = [np.array(COLUMN_VALUES[c.name], c.dtype).tobytes() for c in layout]
    write_rollouts(path, Rollouts(LeaseHeader(3, groups), []), lambda _: [columns] * len(ids))


def test_a_sample_has_what_a_trajectory_and_its_row_have(tmp_path: Path) -> None:
    stops = [StopReason.TERMINATED, StopReason.CONTEXT_LIMIT]
    lease(tmp_path / "lease", stops=stops)
    config = RunConfig(label_key="answer", reward_key="right")
    sample, cut = samples_of(tmp_path / "lease", config, lambda ids: "-".join(map(str, ids)))
    assert isinstance(sample, Sample)
    assert (sample.tokens, sample.response_length) == ([5, 6, 7, 8, 9], 4)
    assert (sample.prompt, sample.response) == ("5", "6-7-8-9")
    assert sample.loss_mask == [1, 1, 0, 0]  # of a tool, and of what nobody trains
    assert sample.rollout_log_probs == [-0.5, -1.0, 0.0, -2.0]
    assert (sample.effective_response_length, sample.weight_versions) == (2, ["3", "4"])
    assert (sample.label, sample.reward) == ("4", {"style": 2.0, "right": 0.5})
    assert sample.get_reward_value(config) == 0.5
    assert sample.metadata == {"reward.style": 2.0, "data_source": "sums"}
    assert [(s.group_index, s.index) for s in (sample, cut)] == [(0, 0), (0, 1)]
    assert [s.status for s in (sample, cut)] == [Sample.Status.COMPLETED, Sample.Status.TRUNCATED]


def test_a_printed_sample_says_what_it_is_and_looks_for_no_tokenizer(tmp_path: Path) -> None:
    lease(tmp_path / "lease", stops=[StopReason.TERMINATED])

    def decode(ids: list[int]) -> str:
        raise AssertionError("a tokenizer would be looked for")

    (sample,) = samples_of(tmp_path / "lease", RunConfig(), decode)
    assert repr(sample) == (
        "LoggedSample(group_index=0, index=0, response_length=4, reward=0.5, status=COMPLETED)"
    )


def test_a_sample_with_tokens_can_be_written_as_json_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "lease"
    lease(path, stops=[StopReason.TERMINATED])
    (sample,) = samples_of(path, RunConfig(), str)
    sample.turns = 2  # type: ignore[attr-defined]
    found = json.loads(json.dumps(sample.to_dict()))
    again = Sample.from_dict(found)
    for name in ("tokens", "loss_mask", "rollout_log_probs", "response", "status", "turns"):
        assert getattr(again, name) == getattr(sample, name)
    assert not [name for name in found if name.startswith("_")]


def mixture(**run: Any) -> RunConfig:
    """Two parts of one file, with keys of their own."""
    sums = {"name": "sums", "prompt_data": "a", "label_key": "answer"}
    sums |= {"env": "single-turn", "rm_type": "dapo", "reward_key": "right"}
    plain = {"name": "plain", "prompt_data": "a", "label_key": "question"}
    return RunConfig(env_mix={"parts": [sums, plain]}, **run)


def test_a_sample_of_a_mixture_has_the_label_and_the_reward_of_its_part(tmp_path: Path) -> None:
    lease(tmp_path / "lease", stops=[StopReason.TERMINATED], parts=["sums", "plain"])
    config = mixture()
    first, second = samples_of(tmp_path / "lease", config, str)
    assert (first.label, first.reward) == ("4", {"style": 2.0, "right": 0.5})
    assert (second.label, second.reward) == ("2+2", 0.5)
    assert [s.get_reward_value(Args(config)) for s in (first, second)] == [0.5, 0.5]


def episode(task: int, index: int, reward: float, **facts: Any) -> ScoredEpisode:
    usual: dict[str, Any] = {"stop_reason": StopReason.TERMINATED, "answer": "4", "num_sampled": 3}
    return ScoredEpisode(task=task, index=index, reward=reward, **(usual | facts))


def test_samples_of_an_evaluation_are_in_order_of_tasks_and_have_no_tokens() -> None:
    episodes = [
        episode(1, 0, 0.0, stop_reason=StopReason.TURN_LIMIT),
        episode(0, 1, 0.5),
        episode(0, 0, 1.0, metrics={"calls": 2.0}),
    ]
    config = RunConfig(input_key="question", label_key="answer")
    found = scored([ROW, {"question": "?"}], keys_of(config), episodes)
    assert found["rewards"] == [1.0, 0.5, 0.0]
    assert found["truncated"] == [False, False, True]
    first, _, last = found["samples"]
    assert (first.prompt, first.response, first.label) == ("2+2", "4", "4")
    assert first.metadata == {"calls": 2.0, "data_source": "sums"}
    assert (first.group_index, first.response_length, first.get_reward_value(None)) == (0, 3, 1.0)
    assert (last.index, last.group_index, last.label) == (2, 1, None)
    assert last.metadata == {"question": "?"}
    with pytest.raises(AttributeError, match=r"evaluation has no 'loss_mask' here: no token of"):
        first.loss_mask  # noqa: B018


def scored_group(mint: int, *, kept: bool, part: str = "", num_episodes: int = 2) -> ScoredGroup:
    """A group of the row above, of which the first episode was cut."""
    stops = [StopReason.TURN_LIMIT, *[StopReason.TERMINATED] * (num_episodes - 1)]
    episodes = [
        EpisodeSummary(
            index, Outcome.DONE, stop, 0.5 * index, {"reward.style": 2.0}, "4", sampled=3
        )
        for index, stop in enumerate(stops)
    ]
    return ScoredGroup(mint, Task("a", ROW, part=part), episodes, kept, "" if kept else "dull")


def test_samples_of_judged_groups_say_which_were_kept_and_count_through_the_run() -> None:
    config = RunConfig(
        input_key="question", label_key="answer", reward_key="right", n_samples_per_prompt=2
    )
    dropped, kept = of_groups([scored_group(7, kept=True), scored_group(3, kept=False)], config)
    assert [(s.group_index, s.index) for s in (*dropped, *kept)] == [
        (2, 4),
        (2, 5),
        (6, 12),
        (6, 13),
    ]
    assert [(s.kept, s.reason) for s in (dropped[0], kept[0])] == [(False, "dull"), (True, "")]
    cut, whole = kept
    assert (whole.prompt, whole.response, whole.label) == ("2+2", "4", "4")
    assert (whole.reward, whole.get_reward_value(config)) == ({"style": 2.0, "right": 0.5}, 0.5)
    assert (cut.get_reward_value(config), whole.response_length) == (0.0, 3)
    assert whole.metadata == {"reward.style": 2.0, "data_source": "sums"}
    assert [s.status for s in kept] == [Sample.Status.TRUNCATED, Sample.Status.COMPLETED]
    assert not whole.remove_sample
    with pytest.raises(AttributeError, match=r"of a scored group has no 'tokens' here: no token"):
        whole.tokens  # noqa: B018


def test_judged_samples_of_a_mixture_have_the_label_and_the_reward_of_their_part() -> None:
    groups = [scored_group(1, kept=True, part="sums"), scored_group(2, kept=True, part="plain")]
    first, second = (samples[1] for samples in of_groups(groups, mixture()))
    assert (first.label, first.reward) == ("4", {"style": 2.0, "right": 0.5})
    assert (second.label, second.reward) == ("2+2", 0.5)


def test_a_sample_without_tokens_can_be_written_as_json() -> None:
    ((sample, _),) = of_groups([scored_group(1, kept=False)], RunConfig())
    written = json.loads(json.dumps(sample.to_dict()))
    assert (written["status"], written["response"], written["kept"]) == ("truncated", "4", False)
    assert set(written) == set(vars(sample)) - {"_keys"}


def test_a_function_of_all_samples_is_given_no_tasks(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    config = RunConfig(rollout_all_samples_process_path=f"{path}:f")
    for body in ("data_source(1)", "data_source.get_samples(1)", "data_source.add_samples([])"):
        path.write_text(f"def f(args, all_samples, data_source):\n    {body}\n")
        found = logged(ALL_SAMPLES, config, 1, [])
        assert found.told.startswith(f"--rollout-all-samples-process-path {path}:f: EnvError: data")
        assert "a class of --data-source-path chooses them" in found.told
        assert found.told.endswith(f"({path}:2)")


def test_a_function_may_ask_whether_it_has_a_source_of_tasks(tmp_path: Path) -> None:
    (path := tmp_path / "mine.py").write_text(
        "def f(args, all_samples, data_source):\n    assert data_source\n"
    )
    config = RunConfig(rollout_all_samples_process_path=f"{path}:f")
    assert logged(ALL_SAMPLES, config, 1, []) == Logged()


def test_what_a_function_of_all_samples_returns_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from slime.observability.logging_utils import log\n"
        "def f(args, all_samples, data_source):\n"
        "    log(args, {'mine/groups': len(all_samples)})\n"
        "    return True\n"
    )
    config = RunConfig(rollout_all_samples_process_path=f"{tmp_path / 'mine.py'}:f")
    assert logged(ALL_SAMPLES, config, 1, [[], []]) == Logged({"mine/groups": 2.0})


#: Where no line of the file is in the traceback.
ODDLY_ENDING = "exec('def __getattr__(name): raise SystemExit(3)')"


def called(folder: Path, body: str) -> Any:
    path = folder / "mine.py"
    path.write_text(
        "import numpy as np\nfrom slime.utils.tracking_utils import log\n"
        f"def f(rollout_id, args, data, extra_metrics):\n    {body}\n"
    )
    config = RunConfig(custom_eval_rollout_log_function_path=f"{path}:f")
    return logged(EVALUATION, config, 7, {})


@pytest.mark.parametrize(
    ("body", "figures"),
    [
        ("log(args, {'a': np.float32(0.5), 'eval/step': 1})", {"a": 0.5}),
        ("log(args, {'a': 1, 'n': 2}, step_key='n'); log(args, {'a': True})", {"a": 1.0}),
        ("extra_metrics['a'] = np.array(3)", {"a": 3.0}),
        ("extra_metrics['a'] = 3; return 1", {}),
        ("return", {}),
    ],
)
def test_numbers_that_are_logged_are_figures(
    body: str, figures: dict[str, float], tmp_path: Path
) -> None:
    found = called(tmp_path, body)
    assert (found.figures, found.told, found.alone) == (figures, "", "return 1" in body)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (
            "log(args, {'a': 'word', 'b': None, 'c': 10**400, 'd': [1]})",
            "was a (str), b (NoneType)",
        ),
        ("log(args, {'a' * 257: 1})", "what is logged are finite numbers"),
        ("log(args, {'a': float('nan'), 'b': np.inf})", "left out was a (nan), b (inf): "),
        ("extra_metrics['a'] = np.float32('nan')", "left out was a (float32): "),
        (f"log(args, {{str(i): i for i in range({MAX_FIGURES + 1})}})", f"{MAX_FIGURES} (int)"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("args.no_such_flag", "args has no 'no_such_flag'"),
    ],
)
def test_what_is_no_figure_is_told(body: str, told: str, tmp_path: Path) -> None:
    found = called(tmp_path, body)
    assert found.told.startswith("--custom-eval-rollout-log-function-path ")
    assert told in found.told
    assert len(found.figures) in (0, MAX_FIGURES)


@pytest.mark.parametrize("body", ["raise SystemExit(3)", ODDLY_ENDING])
def test_a_file_that_ends_its_process_as_it_is_loaded_is_told(body: str, tmp_path: Path) -> None:
    (path := tmp_path / "mine.py").write_text(body)
    config = RunConfig(custom_eval_rollout_log_function_path=f"{path}:f")
    assert "SystemExit: 3" in logged(EVALUATION, config, 7, {}).told


def test_log_is_refused_where_nothing_is_asked_to_log() -> None:
    with pytest.raises(RuntimeError, match=r"read within the functions of --custom-rollout-log"):
        log(None, {"a": 1})


def test_a_name_of_another_axis_is_shown_on_that_of_its_row() -> None:
    scalars = {"rollout/reward_mean": 0.5, "eval/mine": 1.0}
    row = TrackerRow(
        scalars=scalars, histograms={}, axes={"rollout/step": 3, "train/step": 6}, time_s=0.0
    )
    assert row.by_step() == {3: scalars}
