"""The evaluation sets of a mixture: those that its parts name, those that their Envs bring, and
those of the run."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from agentrl.actors.worker import Worker, WorkerSettings
from agentrl.cluster.evaluator import Evaluator
from agentrl.cluster.events import RunState
from agentrl.config.eval_sets import eval_sets
from agentrl.config.resolve import parse
from agentrl.envs.check.preflight import preflight
from agentrl.envs.registry import load_env
from agentrl.envs.services import services_of_run
from agentrl.envs.tasks import open_eval_sets
from agentrl.errors import ConfigError
from agentrl.types import Task
from tests.unit.mixtures import MODEL, parsed, pears, refused, rows, rows_part

__all__ = ["rows"]


def test_evaluation_sets_are_those_that_parts_name_and_those_that_their_envs_bring() -> None:
    held = {"name": "held", "path": "eval.jsonl", "n_samples_per_eval_prompt": 4}
    config = parsed(rows_part(eval=[held]), pears(max_response_len=9)).config
    sets = open_eval_sets(config, load_env("single-turn"))
    assert {name: len(tasks) for name, tasks in sets.items()} == {"sums-held": 24, "pears-ripe": 1}
    own = list(eval_sets(config).values())
    ask: Any = (None, RunState(), None, own)
    evaluator = Evaluator(config, sets, *ask)
    orders = {name: evaluator._order(name, 0, "alone") for name in sets}
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


def test_a_set_of_a_part_may_be_one_that_its_env_brings() -> None:
    config = parsed(pears(eval=[{"name": "ripe", "n_samples_per_eval_prompt": 2}])).config
    assert list(open_eval_sets(config, load_env("single-turn"))) == ["pears-ripe"]
    config = parsed(pears(eval=[{"name": "sour"}])).config
    with pytest.raises(ConfigError, match=r"pears-sour has no `path`.*brings no set sour"):
        open_eval_sets(config, load_env("single-turn"))
