"""metrics: declared once, with a unit and help; an unknown name does not pass unseen."""

import logging

import pytest

from agentrl.telemetry.metrics import REGISTRY
from agentrl.telemetry.registry import Metric, Registry


def test_every_metric_says_what_it_is() -> None:
    for metric in REGISTRY:
        assert metric.unit
        assert len(metric.help) > 8, metric.name


def test_a_star_stands_for_one_word() -> None:
    for name in ("train/ess", "train/ess/age_3", "buffer/fates/trained", "eval/nq/metric/em"):
        assert REGISTRY.find(name) is not None, name
    for name in ("train/ess/age/3", "train/ess/", "train/essay", "buffer/fates", "train/ess/*/x"):
        assert REGISTRY.find(name) is None, name


def test_an_undeclared_name_raises_when_strict() -> None:
    with pytest.raises(ValueError, match=r"undeclared metrics \['train/los'\]"):
        Registry([Metric("train/loss", "loss", "objective")], strict=True).check(
            ["train/loss", "train/los"]
        )


def test_an_undeclared_name_is_logged_once_at_run_time(caplog: pytest.LogCaptureFixture) -> None:
    registry = Registry()
    for _ in range(3):
        registry.check(["train/los"])
    assert [record.message for record in caplog.records] == [
        "metric train/los is not declared: what it means is unknown"
    ]
    assert caplog.records[0].levelno == logging.WARNING


def test_a_name_is_declared_once_and_in_a_family() -> None:
    registry = Registry([Metric("train/loss", "loss", "objective")])
    with pytest.raises(ValueError, match="twice"):
        registry.declare(Metric("train/loss", "loss", "again"))
    with pytest.raises(ValueError, match="family"):
        registry.declare(Metric("loss", "loss", "objective"))


def test_what_an_env_counts_is_kept_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    registry = Registry([Metric("rollout/known", "any", "known")])
    registry.check(["rollout/bad_actions", "rollout/known"])
    assert caplog.messages == []
    assert registry.find("rollout/bad_actions") is None


def test_what_an_env_says_of_its_metrics_is_found_and_changes_no_meaning_of_ours() -> None:
    ours = Metric("rollout/turns_mean", "turns", "turns of an episode")
    any_metric = Metric("eval/*/metric/*", "any", "mean of a metric that the Env counts")
    registry = Registry([ours, any_metric])
    for _ in range(2):  # a program may start several runs
        registry.explain({"bad_actions": "turns that name no action", "turns_mean": "mine"})
    for name in ("rollout/bad_actions", "eval/heldout/metric/bad_actions"):
        found = registry.find(name)
        assert found is not None
        assert found.help == "turns that name no action"
    assert registry.find("rollout/turns_mean") is ours
    assert registry.find("eval/heldout/metric/other") is any_metric
