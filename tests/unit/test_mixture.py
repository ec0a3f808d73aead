"""`--env-mix`: several Envs or datasets in one run, each by the flags of the run with its own in
their place."""

import math
import tomllib
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, cast

import anyio
import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from agentrl.actors.worker import Worker, WorkerSettings
from agentrl.buffer.settings import BufferSettings
from agentrl.cluster.evaluator import Evaluator
from agentrl.cluster.events import RunState
from agentrl.config.eval_sets import eval_sets
from agentrl.config.mixture import MixPart, parts_of, shares, turns
from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.config.resolve import Resolved, parse
from agentrl.config.run import RunConfig
from agentrl.config.sampling import training_turns
from agentrl.config.stored import refuse_changes
from agentrl.config.toml import dump_config
from agentrl.envs.check.preflight import preflight
from agentrl.envs.env import Env, ServiceSpec
from agentrl.envs.messages import Message
from agentrl.envs.mixed import MixedSource
from agentrl.envs.registry import load_env
from agentrl.envs.services import services_of_run
from agentrl.envs.tasks import open_eval_sets, open_source, open_tasks
from agentrl.errors import ConfigError
from agentrl.learner.metrics import lease_metrics
from agentrl.telemetry.metrics import REGISTRY
from agentrl.types import EpisodeFacts, EpisodeId, GroupRows, LeaseHeader, Task, TaskSource

MODEL = str(PRESETS[DEFAULT].values["hf_checkpoint"])
HERE = f"{__file__}:"
HELD = {"name": "held", "path": "eval.jsonl"}


class Pears(Env):
    """Brings tasks and sets of its own, and has a service."""

    def __init__(self, *, colour: str = "green") -> None:
        super().__init__()
        self.colour = colour

    @classmethod
    def service_specs(cls, args: Any) -> dict[str, ServiceSpec]:
        return {"orchard": ServiceSpec("orchard", ["serve", args.get("colour", "")], "/ready")}

    @classmethod
    def train_tasks(cls, args: Any, *, seed: int) -> Sequence[Task]:
        return [Task(f"p{i}", {"n": i}) for i in range(40)]

    @classmethod
    def eval_tasks(cls, args: Any) -> dict[str, Sequence[Task]]:
        return {"ripe": [Task("r", {"n": 1})]}

    async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
        return [Message.user("which?")]

    async def score(self, text: str) -> float:
        return float(text == self.colour)


@pytest.fixture(autouse=True)
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("train", "other", "eval"):
        lines = [f'{{"input": "{name} {i}?", "label": "{i}"}}\n' for i in range(24)]
        Path(f"{name}.jsonl").write_text("".join(lines))


def parsed(*parts: dict[str, Any], flags: str = "", **defaults: Any) -> Resolved:
    file = {"defaults": defaults, "parts": list(parts)}
    Path("mix.yaml").write_text(yaml.safe_dump(file))
    base = f"--hf-checkpoint {MODEL} --rollout-batch-size 4 --device cpu --num-rollout 5"
    base += " --env-mix mix.yaml"
    if "sft_loss" not in flags:
        base += " --rollout-max-response-len 64 --n-samples-per-prompt 4"
    return parse(f"{base} {flags}".split(), "train_async")


def rows_part(name: str = "sums", **said: Any) -> dict[str, Any]:
    return {"name": name, "prompt_data": "train.jsonl", "rm_type": "math", **said}


def pears(name: str = "pears", **said: Any) -> dict[str, Any]:
    return {"name": name, "env": f"{HERE}Pears", **said}


def refused(*parts: Any, flags: str = "", **defaults: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        parsed(*parts, flags=flags, **defaults)
    return str(caught.value)


def first(source: TaskSource, number: int, cursor: int = 0) -> list[Task]:
    async def take() -> list[Task]:
        tasks = source.tasks(cursor)
        return [task async for task in _some(tasks, number)]

    return anyio.run(take)


async def _some(tasks: AsyncIterator[Task], number: int) -> AsyncIterator[Task]:
    for _ in range(number):
        task = await anext(tasks, None)
        if task is None:
            return
        yield task


def source_of(config: RunConfig) -> TaskSource:
    return open_source(config, load_env(config.env or "single-turn"))


@pytest.mark.parametrize(
    ("key", "value", "field"),
    [
        ("prompt_data", "other.jsonl", "prompt_data"),
        ("max_response_len", 40, "rollout_max_response_len"),
        ("max_context_len", 200, "rollout_max_context_len"),
        ("max_prompt_len", 100, "rollout_max_prompt_len"),
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


def test_evaluation_sets_are_those_that_parts_name_and_those_that_their_envs_bring() -> None:
    held = {"name": "held", "path": "eval.jsonl", "n_samples_per_eval_prompt": 4}
    config = parsed(rows_part(eval=[held]), pears(max_response_len=9)).config
    sets = open_eval_sets(config, load_env("single-turn"))
    assert {name: len(tasks) for name, tasks in sets.items()} == {"sums-held": 24, "pears-ripe": 1}
    own = list(eval_sets(config).values())
    ask: Any = (None, RunState(), None, own)
    evaluator = Evaluator(config, sets, *ask)
    orders = {name: evaluator._order(name, 0, beside=False) for name in sets}
    assert orders["sums-held"].num_samples == 4
    assert orders["pears-ripe"].sampling.max_new_tokens == 9


def test_sets_of_the_run_take_the_place_of_those_of_its_parts() -> None:
    config = parsed(rows_part(), pears(), flags="--eval-prompt-data all eval.jsonl").config
    assert list(open_eval_sets(config, load_env("single-turn"))) == ["all"]


def test_sets_of_the_run_are_played_as_the_run_says() -> None:
    """Not as the part that happens to be the first."""
    flags = "--eval-prompt-data all eval.jsonl --rm-type f1 --label-key label"
    config = parsed(pears(), rows_part(), flags=flags).config
    sets = list(eval_sets(config).values())
    processes = services_of_run(config, sets).processes
    addresses = {process: f"http://{process}" for process in processes}
    settings = WorkerSettings.from_config(config, Path(MODEL), 512, addresses, sets)
    way = Worker(settings)._ways.of(Task("t", {}), "all")
    assert (way.settings.env, way.settings.env_args["rm_type"]) == ("single-turn", "f1")


def test_a_default_that_some_parts_cannot_read_is_no_fault() -> None:
    config = parsed({"name": "rows", "prompt_data": "train.jsonl"}, pears(), rm_type="math").config
    rows, fruit = parts_of(config)
    assert rows.config.env_args == {"rm_type": "math"}
    assert fruit.config.env_args == {}


def test_two_sets_of_one_name_are_refused() -> None:
    def one(name: str) -> dict[str, Any]:
        return {"name": name, "path": "eval.jsonl"}

    said = refused(rows_part("a", eval=[one("b-c")]), rows_part("a-b", eval=[one("c")]))
    assert "--env-mix names a-b-c twice" in said


def test_a_mixture_is_scored_alone() -> None:
    held = {"name": "held", "path": "eval.jsonl"}
    words = f"--hf-checkpoint {MODEL} --device cpu --rollout-max-response-len 64 --eval-only"
    Path("mix.yaml").write_text(yaml.safe_dump({"parts": [rows_part(eval=[held]), pears()]}))
    config = parse(f"{words} --env-mix mix.yaml".split(), "train_async").config
    assert preflight(config) == []
    assert list(open_eval_sets(config, load_env("single-turn"))) == ["sums-held", "pears-ripe"]
    assert {t.part for t in open_eval_sets(config, load_env("single-turn"))["sums-held"]} == {
        "sums"
    }


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


def test_a_set_of_a_part_may_be_one_that_its_env_brings() -> None:
    config = parsed(pears(eval=[{"name": "ripe", "n_samples_per_eval_prompt": 2}])).config
    assert list(open_eval_sets(config, load_env("single-turn"))) == ["pears-ripe"]
    config = parsed(pears(eval=[{"name": "sour"}])).config
    with pytest.raises(ConfigError, match=r"pears-sour has no `path`.*brings no set sour"):
        open_eval_sets(config, load_env("single-turn"))


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


def test_a_flag_that_one_part_reads_is_read() -> None:
    parsed(rows_part(), pears(), flags="--max-tool-calls 3 --rollout-shuffle")
    assert "--rollout-shuffle: this is about the rows" in refused(
        pears(), flags="--rollout-shuffle"
    )


def test_prompts_that_are_too_long_are_left_out_of_their_part() -> None:
    rows = [{"input": text, "label": "1"} for text in ("a", "b " * 99)]
    Path("other.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, rows)))
    other = rows_part("o", prompt_data="other.jsonl", max_prompt_len=50)
    config = parsed(rows_part(), other).config
    found = open_tasks(config, load_env("single-turn"))
    assert [n.split(" rows")[0] for n in found.notes] == ["--env-mix: o: 1 of 2"]
    assert {task.id for task in first(found.source, 20) if task.part == "o"} == {"other:1"}


def test_all_that_a_part_cannot_be_told_is_refused_at_once() -> None:
    said = refused(
        rows_part(temperature=0.7, top_p=0.9, max_turn=3),
        rows_part("b/c"),
        pears("d", weight=-1),
        pears("e", weight=[[3, 1], [3, 2]], eval="held"),
        pears("f", max_response_len=0),
        pears("g", weight=True),
        pears("h", weight=math.inf),
    )
    for part in (
        "sums: unknown key max_turn; did you mean max_turns?",
        "sums: temperature: the learner scores all tokens at one: give --rollout-temperature",
        "sums: top_p: training needs the probabilities of all tokens",
        "a part cannot be called 'b/c'",
        "d: weight is -1, and must be a number of 0 or more",
        "e: weight is [[3, 1], [3, 2]]",
        "e: eval is 'held', and must be a list",
        "f: max_response_len: --rollout-max-response-len cannot be 0",
        "g: weight is True",
        "h: weight is inf",
    ):
        assert part in said, f"{part!r} is not in {said}"


@pytest.mark.parametrize(
    ("parts", "flags", "said"),
    [
        ([rows_part(), rows_part()], "", "--env-mix names sums twice"),
        ([], "", "`parts` must be a list"),
        ([rows_part(weight=0), pears(weight=0)], "", "at iteration 0 no part has a weight"),
        ([rows_part(weight=[[0, 1], [9, 0]])], "", "at iteration 9 no part has a weight"),
        ([rows_part()], "--prompt-data train.jsonl", "each part of a mixture names tasks"),
        ([rows_part()], "--data-source-path m.py", "each part of a mixture names tasks"),
        ([pears(rm_type="math")], "", "pears: rm_type: only --env single-turn, tools"),
        ([pears(reward_key="acc")], "", "pears: reward_key: only a reward of --rm-type"),
        ([pears(metadata_key="m")], "", "pears: metadata_key: this is about the rows"),
        (
            [pears(custom_generate_function_path="a.py")],
            "",
            "pears: custom_generate_function_path:",
        ),
        ([rows_part("eval0")], "", "a part cannot be called 'eval0'"),
        (
            [rows_part(eval=[{"name": "x", "path": "eval.jsonl", "top_k": 0}])],
            "",
            "sums-x: --eval-top-k",
        ),
        (
            [rows_part(eval=[{"name": "x", "path": "gone"}])],
            "",
            "sums: eval gone: there is no file",
        ),
        ([rows_part(prompt_data="gone.jsonl")], "", "sums: --prompt-data gone.jsonl: there is no"),
        ([rows_part(max_context_len=10**6)], "", "sums: --rollout-max-context-len 1000000 is more"),
        ([rows_part(eval=[{"name": "x", "pth": "a"}])], "", "sums: eval: x: unknown key pth"),
        ([rows_part(eval=[{"name": "x", "path": "gone"}])], "", "there is no file"),
    ],
)
def test_a_mixture_that_cannot_be_is_refused(parts: Any, flags: str, said: str) -> None:
    assert said in refused(*parts, flags=flags)


def test_a_file_that_is_none_is_refused_by_its_name() -> None:
    words = f"--hf-checkpoint {MODEL} --device cpu --env-mix"
    with pytest.raises(ConfigError, match=r"--env-mix gone\.toml cannot be read"):
        parse([*words.split(), "gone.toml"], "train_async")
