"""`--eval-config`: each evaluation set is played by the flags of the run, with its own in their
place."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
import yaml

from agentrl.actors.player import Attempt, Player
from agentrl.actors.report import PlayedEpisode, failed_episode
from agentrl.actors.ways import Ways
from agentrl.actors.worker import WorkerSettings
from agentrl.cluster.evaluator import Evaluator
from agentrl.cluster.events import RunState
from agentrl.config.eval_sets import EvalSet, engine_context, eval_sets
from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.config.resolve import Resolved, parse
from agentrl.config.run import RunConfig
from agentrl.envs.check.preflight import preflight
from agentrl.envs.env import Env, ServiceSpec
from agentrl.envs.messages import Message
from agentrl.envs.registry import load_env
from agentrl.envs.services import services_of_run
from agentrl.envs.tasks import open_eval_sets
from agentrl.errors import ConfigError
from agentrl.types import EpisodeAssignment, EpisodeId, Outcome, SamplingParams, Task

pytestmark = pytest.mark.slow

MODEL = str(PRESETS[DEFAULT].values["hf_checkpoint"])
HERE = f"{__file__}:"


class Apples(Env):
    """Brings sets of its own, and has a service."""

    def __init__(self, *, colour: str = "red") -> None:
        super().__init__()
        self.colour = colour

    @classmethod
    def service_specs(cls, args: Any) -> dict[str, ServiceSpec]:
        argv = ["serve", args.get("colour", "red")]
        return {"orchard": ServiceSpec("orchard", argv, "/ready")}

    @classmethod
    def eval_tasks(cls, args: Any) -> dict[str, Sequence[Task]]:
        return {"ripe": [Task("r", {"colour": args.get("colour", "red")})]}

    async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
        return [Message.user("which?")]

    async def score(self, text: str) -> float:
        return float(text == self.colour)


@pytest.fixture(autouse=True)
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.jsonl").write_text('{"input": "One and one?", "label": "2"}\n')
    Path("eval.jsonl").write_text('{"input": "Two?", "label": "4", "metadata": {"a": 1, "b": 2}}\n')


def parsed(file: Any, flags: str = "", name: str = "sets.yaml") -> Resolved:
    text = file if isinstance(file, str) else yaml.safe_dump(file)
    Path(name).write_text(text)
    base = f"--hf-checkpoint {MODEL} --prompt-data train.jsonl --rollout-max-response-len 64"
    base += f" --n-samples-per-prompt 4 --device cpu --eval-config {name}"
    return parse(f"{base} {flags}".split(), "train_async")


def sets_of(*entries: dict[str, Any], flags: str = "", **defaults: Any) -> dict[str, EvalSet]:
    file = {"eval": {"defaults": defaults, "datasets": list(entries)}}
    return eval_sets(parsed(file, flags).config)


def entry(name: str = "held", **said: Any) -> dict[str, Any]:
    return {"name": name, "path": "eval.jsonl", **said}


def refused(*entries: Any, **defaults: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        sets_of(*entries, **defaults)
    return str(caught.value)


def order(one: EvalSet, run: RunConfig) -> Any:
    parts: Any = (None, RunState(), None, [one])
    evaluator = Evaluator(run, {one.name: [Task("t", {})]}, *parts)
    return evaluator._order(one.name, 0, "alone")


@pytest.mark.parametrize(
    ("key", "value", "field"),
    [
        ("n_samples_per_eval_prompt", 16, "n_samples_per_eval_prompt"),
        ("temperature", 0.3, "eval_temperature"),
        ("top_p", 0.7, "eval_top_p"),
        ("top_k", 20, "eval_top_k"),
        ("max_response_len", 40, "eval_max_response_len"),
        ("max_context_len", 200, "eval_max_context_len"),
        ("max_prompt_len", 100, "eval_max_prompt_len"),
        ("stop", ["</a>"], "rollout_stop"),
        ("stop_token_ids", [5], "rollout_stop_token_ids"),
        ("rm_url", "http://here/score", "rm_url"),
        ("input_key", "label", "eval_input_key"),
        ("label_key", "input", "eval_label_key"),
        ("tool_key", "input", "eval_tool_key"),
        ("metadata_key", "label", "metadata_key"),
        ("max_turns", 3, "max_turns"),
        ("apply_chat_template", True, "apply_chat_template"),
    ],
)
def test_a_key_of_a_set_is_the_flag_that_it_stands_for(key: str, value: Any, field: str) -> None:
    """A set says it, or the defaults do; what neither says is that of the run."""
    run = parsed({"datasets": [entry()]}).config
    said = sets_of(entry(**{key: value}), entry("other"))
    for sets in (said, sets_of(entry(), **{key: value})):
        assert getattr(sets["held"].config, field) == value != getattr(run, field)
    assert getattr(said["other"].config, field) == getattr(run, field)


def test_a_set_says_more_than_the_defaults_and_they_more_than_the_run() -> None:
    sets = sets_of(
        entry(temperature=0.1), entry("other"), flags="--eval-temperature 0.9", temperature=0.5
    )
    assert sets["held"].config.eval_temperature == 0.1
    assert sets["other"].config.eval_temperature == 0.5


def test_what_is_asked_of_the_buffer_is_that_of_the_set() -> None:
    sets = sets_of(entry(n_samples_per_eval_prompt=16, top_p=0.7, stop_token_ids=[7]))
    run = RunConfig(eval_mode="pinned")
    asked = order(sets["held"], run)
    assert (asked.num_samples, asked.sampling.top_p) == (16, 0.7)
    assert asked.sampling.stop_token_ids == (7,)


def test_the_worker_plays_each_set_within_its_own_limits() -> None:
    said = sets_of(entry(max_context_len=200, max_prompt_len=99, max_turns=3), entry("other"))
    run = parsed({"datasets": [entry()]}).config
    settings = WorkerSettings.from_config(run, Path(MODEL), 512, {}, list(said.values()))
    assert list(settings.evaluations) == ["held"]
    limits = settings.evaluations["held"].limits.evaluation
    assert limits is not None
    assert (limits.max_context, limits.max_prompt, limits.max_turns) == (200, 99, 3)
    assert settings.limits.max_turns == run.max_turns


def test_engines_hold_the_longest_context_of_all() -> None:
    flags = "--rollout-max-context-len 128"
    sets = sets_of(entry(max_context_len=200), entry("short", max_context_len=90), flags=flags)
    run = parsed({"datasets": [entry()]}, flags).config
    assert (run.engine_context, engine_context(run, sets)) == (128, 200)


def test_the_reward_of_a_set_is_told_to_each_of_its_rows() -> None:
    said = entry(rm_type="math", metadata_overrides={"b": 3, "c": 4})
    run = parsed({"datasets": [said, entry("plain")]}).config
    found = open_eval_sets(run, load_env("single-turn"))
    assert found["held"][0].row["metadata"] == {"a": 1, "b": 3, "c": 4, "rm_type": "math"}
    assert found["plain"][0].row["metadata"] == {"a": 1, "b": 2}


def test_two_sets_of_one_file_are_scored_by_rewards_of_their_own() -> None:
    said = [entry("exact"), entry("boxed", rm_type="math")]
    run = parsed({"datasets": said}).config
    worth: dict[str, float] = {}

    async def play(name: str, task: Task) -> None:
        env = load_env("single-turn")()
        await env.reset(seed=0, task=task.row)
        worth[name] = await env.score(r"it is \boxed{4}")

    for name, (task,) in open_eval_sets(run, load_env("single-turn")).items():
        anyio.run(play, name, task)
    assert worth == {"exact": 0.0, "boxed": 1.0}


@pytest.mark.parametrize(
    ("flags", "said", "text", "worth"),
    [
        ("--rm-type math", {"rm_type": "dapo", "reward_key": "acc"}, "Answer: 4", 1.0),
        ("--rm-type dapo --reward-key score", {"rm_type": "math"}, r"\boxed{4}", 1.0),
        ("--rm-type dapo --reward-key score", {"rm_type": "dapo"}, "Answer: 5", -1.0),
    ],
)
def test_a_set_with_a_reward_of_its_own_has_a_key_of_its_own(
    flags: str, said: dict[str, Any], text: str, worth: float
) -> None:
    Path("eval.jsonl").write_text('{"input": "Two?", "label": "4"}\n')
    run = parsed({"datasets": [entry(**said)]}, flags).config
    assert preflight(run) == []
    (one,), sets = eval_sets(run).values(), open_eval_sets(run, load_env("single-turn"))

    async def play() -> float:
        env = load_env(one.env)(**one.config.env_args)
        env.is_evaluation = True
        await env.reset(seed=0, task=sets["held"][0].row)
        return await env.score(text)

    assert anyio.run(play) == worth


def test_a_function_scores_the_rows_of_one_set_alone() -> None:
    Path("mine.py").write_text("def worth(text, label, task):\n    return 0.25\n")
    sets = sets_of(entry(custom_rm_path="mine.py:worth"), entry("other"), flags="--rm-type math")
    assert sets["held"].config.env_args == {"rm_type": "math", "reward": "mine.py:worth"}
    assert sets["other"].config.env_args == {"rm_type": "math"}


def test_a_function_of_the_users_may_know_kinds_of_its_own() -> None:
    Path("mine.py").write_text("def worth(text, label, task):\n    return 0.25\n")
    said = entry(custom_rm_path="mine.py:worth", rm_type="mine")
    assert sets_of(said)["held"].metadata == {"rm_type": "mine"}
    boxed = entry(rm_type=" boxed_f1")
    assert sets_of(boxed)["held"].metadata == {"rm_type": " boxed_f1"}


def test_a_set_may_be_played_by_another_env_and_bring_its_own_tasks() -> None:
    sets = sets_of(
        {"name": "ripe", "env": f"{HERE}Apples", "env_args": {"colour": "green"}},
        entry(),
        flags="--rm-type math",
    )
    ripe = sets["ripe"]
    assert (ripe.env, ripe.config.env_args) == (f"{HERE}Apples", {"colour": "green"})
    run = parsed({"datasets": [entry()]}).config
    config = parsed(
        {"datasets": [{"name": "ripe", "env": f"{HERE}Apples", "env_args": {"colour": "green"}}]}
    ).config
    assert open_eval_sets(config, load_env("single-turn"))["ripe"][0].row == {"colour": "green"}
    addresses = {"orchard-eval0": "http://x"}
    settings = WorkerSettings.from_config(run, Path(MODEL), 512, addresses, list(sets.values()))
    assert settings.evaluations["ripe"].env_args == {"colour": "green"}


def test_a_function_may_play_one_set() -> None:
    Path("play.py").write_text("async def generate(args, sample, sampling_params):\n    ...\n")
    sets = sets_of(entry(custom_generate_function_path="play.py"), entry("other"))
    assert (sets["held"].env, sets["other"].env) == ("generate", "single-turn")
    assert sets["held"].config.env_args == {"function": "play.py"}


def test_each_set_has_the_services_of_its_env_and_the_same_one_runs_once() -> None:
    def named(name: str, **args: Any) -> dict[str, Any]:
        return {"name": name, "env": f"{HERE}Apples", "env_args": args}

    datasets = [named("ripe"), named("a", colour="green"), named("b", colour="green"), entry()]
    run = parsed({"datasets": datasets}, f"--env {HERE}Apples").config
    sets = list(eval_sets(run).values())
    found = services_of_run(run, sets)
    argv = {name: spec.argv for name, spec in found.processes.items()}
    assert argv == {"orchard": ["serve", "red"], "orchard-eval1": ["serve", "green"]}
    addresses = {"orchard": "http://red", "orchard-eval1": "http://green"}
    settings = WorkerSettings.from_config(run, Path(MODEL), 512, addresses, sets)
    services = {name: one.context.services for name, one in settings.evaluations.items()}
    red, green = {"orchard": "http://red"}, {"orchard": "http://green"}
    assert (services["a"], services["b"]) == (green, green)
    assert settings.context.services == addresses
    assert services.get("ripe", red) == red


@pytest.mark.parametrize(
    "file",
    [
        {"eval": {"datasets": [entry()]}},
        {"datasets": [entry()]},
        {"datasets": {"held": {"path": "eval.jsonl"}}},
    ],
)
def test_slimes_three_forms_of_the_file_are_read(file: Any) -> None:
    (one,) = eval_sets(parsed(file).config).values()
    assert (one.name, one.path) == ("held", "eval.jsonl")


def test_the_file_may_be_toml() -> None:
    text = '[[eval.datasets]]\nname = "held"\npath = "eval.jsonl"\ntop_p = 0.5\n'
    (one,) = eval_sets(parsed(text, name="sets.toml").config).values()
    assert one.config.eval_top_p == 0.5


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"temprature": 1}, "held: unknown key temprature; did you mean temperature?"),
        ({"temperature": -1}, "held: temperature: --eval-temperature cannot be -1"),
        ({"stop": [""]}, "evaluation set held: --rollout-stop '': every text holds"),
        ({"min_new_tokens": 4}, "held: min_new_tokens"),
        ({"multimodal_keys": {"image": "i"}}, "held: multimodal_keys"),
        ({"repetition_penalty": 1.1}, "held: repetition_penalty is not there"),
        ({"apply_chat_template_kwargs": {}}, "give --apply-chat-template-kwargs"),
        ({"metadata_overrides": 3}, "held: metadata_overrides is 3"),
        ({"rm_type": "math", "path": None}, "held: rm_type and metadata_overrides are for rows"),
        ({"rm_type": "math", "env": "guess"}, "and guess plays this set"),
        ({"rm_type": "nonsense"}, "held: rm_type: there is no reward 'nonsense'; known: "),
        ({"metadata_overrides": {"rm_type": "boxed_maths"}}, "no reward 'boxed_maths'; did you"),
        ({"path": "nowhere.jsonl"}, "--eval-config nowhere.jsonl: there is no file"),
        ({"top_k": 0}, "evaluation set held: --eval-top-k 0 leaves no token"),
        ({"max_context_len": 10**9}, "evaluation set held: --eval-max-context-len 1000000000"),
    ],
)
def test_what_no_set_can_be_told_is_refused_with_its_name(said: dict[str, Any], told: str) -> None:
    assert told in refused(entry(**said))


def test_all_that_is_wrong_with_a_file_is_told_at_once() -> None:
    said = refused(entry(temprature=1, min_new_tokens=4), entry("other", top_p=7))
    assert all(word in said for word in ("temprature", "held: min_new_tokens", "other: top_p"))


@pytest.mark.parametrize(
    ("file", "told"),
    [
        ("eval: [1", "is not YAML"),
        ("eval: {}", "`datasets` must be a list"),
        ("eval: {datasets: [{path: a}]}", "entry 1 of `datasets` must be a table with a `name`"),
        ("eval: {datasets: [{name: a}, {name: a}]}", "names a twice"),
        ("eval: {temperature: 1, datasets: []}", "unknown temperature beside"),
        (
            "eval: {defaults: {nope: 1}, datasets: [{name: a, path: eval.jsonl}]}",
            "unknown key nope",
        ),
    ],
)
def test_what_is_no_file_of_sets_is_refused(file: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        eval_sets(parsed(file).config)
    assert told in str(caught.value)


def test_a_set_without_a_path_must_be_one_of_its_env() -> None:
    config = parsed({"datasets": [{"name": "raw", "env": f"{HERE}Apples"}]}).config
    with pytest.raises(ConfigError) as caught:
        preflight(config)
    assert "raw has no `path`, and" in str(caught.value)
    assert "it brings ripe" in str(caught.value)


def test_the_env_of_a_set_is_made_before_the_start() -> None:
    wrong = {"name": "ripe", "env": f"{HERE}Apples", "env_args": {"size": 3}}
    config = parsed({"datasets": [wrong]}).config
    with pytest.raises(ConfigError) as caught:
        preflight(config)
    assert "evaluation set ripe: Apples cannot be made with --env-args {'size': 3}" in str(
        caught.value
    )


def test_sets_come_from_the_file_or_from_words_and_not_from_both() -> None:
    with pytest.raises(ConfigError) as caught:
        parsed({"datasets": [entry()]}, "--eval-prompt-data a eval.jsonl")
    assert "--eval-config and --eval-prompt-data" in str(caught.value)


def test_many_equal_answers_of_a_set_are_told() -> None:
    notes = parsed({"datasets": [entry(temperature=0, n_samples_per_eval_prompt=4)]}).notes
    assert any("evaluation set held: --n-samples-per-eval-prompt 4" in note for note in notes)


class Noting:
    """A strategy that notes whose episodes it is given."""

    def __init__(self) -> None:
        self.played: list[str | None] = []

    async def play(self, attempt: Attempt, boundary: Any) -> PlayedEpisode:
        self.played.append(attempt.assignment.evaluation)
        return failed_episode(attempt.assignment, Outcome.ENV_ERROR, "nobody played it")


class Led:
    """A way of which the strategy alone is asked."""

    def __init__(self, strategy: Noting) -> None:
        self.strategy = strategy


def test_an_episode_is_led_as_its_set_is_played() -> None:
    usual, held = Noting(), Noting()
    ways: Any = ({"": Led(usual)}, {"held": Led(held)})
    player = Player(Ways(*ways))
    for name in (None, "held", "other"):
        assignment = EpisodeAssignment(
            EpisodeId("g", 0), 0, 0, Task("t", {}), SamplingParams(), evaluation=name
        )
        anyio.run(player.play, assignment, cast(Any, None))
    assert (usual.played, held.played) == ([None, "other"], ["held"])
