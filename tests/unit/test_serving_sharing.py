"""Engines that share devices with the learner: scripted ones that refuse what SGLang dies of."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from agentrl.cluster.roles.learner import sink_settings
from agentrl.cluster.spec import ModelFacts, RunSpec
from agentrl.config.run import RunConfig
from agentrl.errors import PushError
from tests.unit.scripted_engines import Cluster, some_weights

TAGS = {"weights", "kv_cache", "cuda_graph"}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with ExitStack() as resources:
        yield Cluster(["one", "two"], resources)


def test_a_turn_releases_takes_weights_pushes_and_serves(cluster: Cluster) -> None:
    sink = cluster.sink("one", "two", shares_devices=True)
    for version in (0, 1):
        sink.release()
        for engine in cluster.engines.values():
            assert engine.memory == set()
            assert engine.paused
        sink.inspect()  # nothing can be said of weights that are gone
        sink.take_weights()
        assert [engine.memory for engine in cluster.engines.values()] == [{"weights"}] * 2
        weights = some_weights(version)
        sink.publish(version, weights.items())
        assert all(engine.paused for engine in cluster.engines.values())
        sink.serve()
        assert all(engine.memory == TAGS for engine in cluster.engines.values())
        cluster.assert_serving(version, weights, "one", "two")


def test_engines_that_keep_their_memory_are_paused_and_release_none(cluster: Cluster) -> None:
    config = RunConfig(colocate=True, offload_rollout=False, run_dir="/runs")
    spec = RunSpec(
        config=config,
        run_dir="/runs/r",
        model_dir="m",
        model=ModelFacts(9, 9),
        buffer_address="ipc://b",
        router_url=None,
        engines=[],
        services={},
        master_address="",
        master_port=0,
        collective_address="",
    )
    kept = {name: sink_settings(spec)[name] for name in ("shares_devices", "keeps_memory")}
    sink = cluster.sink("one", **kept)
    sink.release()
    engine = cluster.engines["one"]
    assert engine.paused
    assert engine.memory == TAGS
    sink.take_weights()
    weights = some_weights(1)
    sink.publish(1, weights.items())
    assert engine.paused
    sink.serve()
    cluster.assert_serving(1, weights, "one")
    assert not [call for call in engine.calls if "occupation" in call]


def test_an_engine_that_is_lost_in_a_turn_ends_it(cluster: Cluster) -> None:
    """Nobody knows which memory it has: all start again together."""
    sink = cluster.sink("one", "two", shares_devices=True)
    cluster.engines["two"].die()
    with pytest.raises(PushError, match="two was lost in a turn on devices"):
        sink.release()
    assert cluster.lost == []
