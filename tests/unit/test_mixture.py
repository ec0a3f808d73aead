"""`--env-mix`: several Envs or datasets in one run, each by the flags of the run with its own in
their place."""

import tomllib
from collections import Counter
from collections.abc import AsyncIterator
from itertools import islice
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.actors.worker import Worker, WorkerSettings
from agentrl.buffer.settings import BufferSettings
from agentrl.config.mixture import MixPart, parts_of, shares, turns
from agentrl.config.resolve import parse
from agentrl.config.run import RunConfig
from agentrl.config.sampling import training_turns
from agentrl.config.stored import refuse_changes
from agentrl.config.toml import dump_config
from agentrl.envs.check.preflight import preflight
from agentrl.envs.mixed import MixedSource
from agentrl.envs.registry import load_env
from agentrl.envs.services import services_of_run
from agentrl.envs.tasks import open_tasks
from agentrl.errors import ConfigError
from agentrl.learner.metrics import lease_metrics
from agentrl.telemetry.metrics import REGISTRY
from agentrl.types import EpisodeFacts, EpisodeId, GroupRows, LeaseHeader, Task
from tests.unit.mixtures import (
    HERE,
    MODEL,
    first,
    parsed,
    pears,
    refused,
    rows,
    rows_part,
    source_of,
)

__all__ = ["rows"]


@pytest.mark.parametrize(
    ("key", "value", "field"),
    [
        ("prompt_data", "other.jsonl", "prompt_data"),
        ("max_response_len", 40, "rollout_max_response_len"),
        ("max_context_len", 200, "rollout_max_context_len"),
        ("max_prompt_len", 100, "rollout_max_prompt_len"),
        ("temperature", 0.7, "rollout_temperature"),
        ("stop", ["</a>"], "rollout_stop"),
        ("stop_token_ids", [5], "rollout_stop_token_ids"),
        ("input_key", "label", "input_key"),
        ("label_key", "input", "label_key"),
        ("tool_key", "input", "tool_key"),
        ("metadata_key", "label", "metadata_key"),
        ("reward_key", "acc", "reward_key"),
        ("rm_type", "f1", "rm_type"),
        ("rm_url", "http://judge:1", "rm_url"),
        ("group_rm", True, "group_rm"),
        ("max_turns", 3, "max_turns"),
        ("max_tool_calls", 2, "max_tool_calls"),
        ("apply_chat_template", True, "apply_chat_template"),
    ],
)
def test_a_key_of_a_part_is_the_flag_that_it_stands_for(key: str, value: Any, field: str) -> None:
    """A part says it, or the defaults do; what neither says is that of the run."""
    usual = parts_of(parsed(rows_part()).config)[0].config
    one, other = parts_of(parsed(rows_part(**{key: value}), rows_part("other")).config)
    assert getattr(one.config, field) == value != getattr(usual, field)
    assert getattr(other.config, field) == getattr(usual, field)
    if key not in ("prompt_data", "rm_type"):  # which the part says
        by_default = parts_of(parsed(rows_part(), **{key: value}).config)[0]
        assert getattr(by_default.config, field) == value


def test_a_part_is_played_by_its_own_env_with_its_own_reward() -> None:
    config = parsed(rows_part(), pears(env_args={"colour": "red"}), flags="--rm-type f1").config
    sums, red = parts_of(config)
    assert (sums.config.env, sums.config.env_args["rm_type"]) == ("single-turn", "math")
    assert (red.config.env, red.config.env_args) == (f"{HERE}Pears", {"colour": "red"})


def test_weights_say_how_often_it_is_the_turn_of_a_part() -> None:
    config = parsed(rows_part(weight=3), pears(weight=1)).config
    found = Counter(task.part for task in first(source_of(config), 40))
    assert found == {"sums": 30, "pears": 10}


def test_a_curriculum_moves_from_one_part_to_the_other() -> None:
    falling, rising = [[0, 1], [4, 0]], [[0, 0], [4, 1]]
    config = parsed(rows_part(weight=falling), pears(weight=rising)).config
    tasks = [task.part for task in first(source_of(config), 24)]
    by_iteration = [Counter(tasks[i : i + 4])["pears"] for i in range(0, 24, 4)]
    assert by_iteration == [0, 1, 2, 3, 4, 4]


@given(
    weights=st.lists(st.integers(0, 5), min_size=1, max_size=5).filter(any),
    number=st.integers(1, 200),
)
def test_each_part_is_within_one_task_of_its_share(weights: list[int], number: int) -> None:
    points = [[(0.0, float(weight))] for weight in weights]
    found = Counter(islice(turns(points, 4), number))
    for index, share in enumerate(shares(points, 0)):
        assert abs(found[index] - share * number) < max(1, len(weights) - 1)
        assert share > 0 or not found[index]


@given(cursor=st.integers(0, 60))
def test_the_order_is_the_same_from_any_position_on(cursor: int) -> None:
    class Numbers:
        def __init__(self, name: str) -> None:
            self.name = name

        async def tasks(self, cursor: int = 0) -> AsyncIterator[Task]:
            for i in range(cursor, 1000):
                yield Task(f"{self.name}{i}", {})

    parts = [
        MixPart(n, RunConfig(), [(float(i), float(x)) for i, x in w])
        for n, w in (("a", [(0, 3)]), ("b", [(0, 1), (9, 8)]))
    ]
    source = MixedSource(cast(Any, parts), [Numbers("a"), Numbers("b")], 4)
    assert first(source, 20, cursor) == first(source, cursor + 20)[cursor:]


def test_one_env_twice_has_the_tasks_of_a_run_without_a_mixture() -> None:
    """Each part gets the next task of what they share: rows, or those of the same Env."""
    plain = "--prompt-data train.jsonl --rollout-shuffle --rm-type math"
    words = f"--hf-checkpoint {MODEL} --rollout-max-response-len 64 --device cpu --num-rollout 5"
    run = parse(f"{words} {plain}".split(), "train_async").config
    config = parsed(rows_part("a"), rows_part("b"), flags="--rollout-shuffle").config
    mixed = first(source_of(config), 60)
    assert {task.part for task in mixed} == {"a", "b"}
    alone = [msgspec.structs.replace(task, part="") for task in mixed]
    assert alone == first(source_of(run), 60)
    twice = first(source_of(parsed(pears("a"), pears("b")).config), 40)
    assert [task.id for task in twice] == [f"p{i}" for i in range(40)]


def test_a_mixture_ends_with_the_first_part_that_has_no_task() -> None:
    config = parsed(rows_part(), pears()).config
    config = msgspec.structs.replace(config, num_rollout=None)
    assert len(first(source_of(config), 1000)) == 2 * 24


def test_each_part_is_played_within_its_own_limits_and_as_its_own_env() -> None:
    config = parsed(rows_part(max_context_len=200), pears(max_turns=3)).config
    named = services_of_run(config, [])
    addresses = {process: f"http://{process}" for process in named.processes}
    settings = WorkerSettings.from_config(config, Path(MODEL), 512, addresses)
    worker = Worker(settings)
    sums, fruit = (worker._ways.of(Task("t", {}, part)) for part in ("sums", "pears"))
    assert type(sums.make_env()).__name__ == "SingleTurnEnv"
    env = fruit.make_env()
    assert type(env).__name__ == "Pears"
    assert env.services == {"orchard": "http://orchard-pears"}
    assert sums.settings.limits.max_context == 200
    assert fruit.settings.limits.max_turns == 3


def test_dialogues_of_several_files_are_imitated() -> None:
    row = {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]}
    Path("train.jsonl").write_bytes(msgspec.json.encode(row))
    flags = "--loss-type sft_loss --n-samples-per-prompt 1 --input-key messages"
    parts = [
        {"name": "a", "prompt_data": "train.jsonl"},
        {"name": "b", "prompt_data": "other.jsonl"},
    ]
    config = parsed(*parts, flags=flags, input_key="messages").config
    settings = WorkerSettings.from_config(config, Path(MODEL), 512, {})
    assert [way.demonstration_key for way in settings.parts.values()] == ["messages", "messages"]
    with pytest.raises(Exception, match=r"--env-mix: b: .*lacks \['messages'\]"):
        preflight(config)
    assert "c: --loss-type sft_loss imitates dialogues" in refused({"name": "c"}, flags=flags)
    assert "c: env: --loss-type sft_loss" in refused(pears("c", prompt_data="a"), flags=flags)


def test_the_buffer_asks_for_turns_as_each_part_says() -> None:
    config = parsed(rows_part(max_response_len=17, stop_token_ids=[9]), pears()).config
    of_parts = {part.name: training_turns(part.config) for part in parts_of(config)}
    settings = BufferSettings.from_config(config, "ipc://x", training_turns(config), of_parts)
    sums = settings.sampling_of(Task("t", {}, "sums"))
    assert (sums.max_new_tokens, sums.stop_token_ids) == (17, (9,))
    assert settings.sampling_of(Task("t", {}, "pears")) == settings.sampling


def test_rows_that_one_env_leaves_out_are_there_for_another() -> None:
    lines = [{"input": text, "label": "1"} for text in ("a", "b " * 99)]
    Path("other.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, lines)))
    short = {"prompt_data": "other.jsonl", "max_prompt_len": 50}
    config = parsed(rows_part("rows", **short), pears("own", **short)).config
    tasks = first(open_tasks(config, load_env("single-turn")).source, 8)
    assert {task.id for task in tasks if task.part == "own"} == {"other:1", "other:2"}
    assert {task.id for task in tasks if task.part == "rows"} == {"other:1"}


def test_a_key_that_says_nothing_is_as_one_that_is_not_there() -> None:
    config = parsed(rows_part(max_turns=None), rows_part("other", weight=None)).config
    assert dump_config(config)
    assert [part.weight for part in parts_of(config)] == [[(0.0, 1.0)]] * 2


def test_one_process_serves_parts_that_want_the_same() -> None:
    red = {"env_args": {"colour": "red"}}
    found = services_of_run(parsed(pears("a"), pears("b"), pears("c", **red)).config, [])
    assert list(found.processes) == ["orchard-a", "orchard-c"]
    names = [each["orchard"] for each in found.of_parts]
    assert names == ["orchard-a", "orchard-a", "orchard-c"]


def test_a_continued_run_has_the_mixture_it_began_with(tmp_path: Path) -> None:
    config = parsed(rows_part(weight=[[0, 1], [5, 0.5]]), pears()).config
    again = msgspec.convert(tomllib.loads(dump_config(config))["env_mix"], dict[str, Any])
    assert again == config.env_mix
    other = parsed(rows_part(weight=2), pears()).config
    with pytest.raises(ConfigError, match=r"--env-mix .*its ledger counts the tasks of that"):
        refuse_changes(config, other, tmp_path)


def test_metrics_of_the_groups_of_each_part() -> None:
    def group(part: str, *rewards: float) -> GroupRows:
        ids = [EpisodeId("g", i) for i in range(len(rewards))]
        facts = [EpisodeFacts(part=part) for _ in rewards]
        counts = [{"calls": 2.0} for _ in rewards]
        return GroupRows("g", 1, "t", ids, list(rewards), counts, [], facts=facts)

    found = lease_metrics(LeaseHeader(1, [group("a", 1, 0), group("b", 1, 1), group("", 0)]), [])
    assert found["rollout/num_groups"] == 3
    assert found["rollout/part/a/num_episodes"] == 2
    assert found["rollout/part/b/calls"] == 2
    assert not [name for name in found if name.startswith("rollout/part//")]
    assert REGISTRY.find("rollout/part/a/reward_mean") is not None


def test_a_dry_run_looks_at_each_part() -> None:
    notes = preflight(parsed(rows_part(), pears()).config)
    assert any(note.startswith("--env-mix: pears: environment Pears") for note in notes)
    Path("train.jsonl").write_text('{"input": "a"}\nnot json\n')
    with pytest.raises(Exception, match=r"--env-mix: sums: .*train.jsonl"):
        preflight(parsed(rows_part(), pears()).config)


def test_prompts_that_are_too_long_are_left_out_of_their_part() -> None:
    rows = [{"input": text, "label": "1"} for text in ("a", "b " * 99)]
    Path("other.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, rows)))
    other = rows_part("o", prompt_data="other.jsonl", max_prompt_len=50)
    config = parsed(rows_part(), other).config
    found = open_tasks(config, load_env("single-turn"))
    assert [n.split(" rows")[0] for n in found.notes] == ["--env-mix: o: 1 of 2"]
    assert {task.id for task in first(found.source, 20) if task.part == "o"} == {"other:1"}
