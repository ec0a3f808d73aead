"""The weight sink against scripted engines that speak the control plane and real gloo."""

import threading
import time
from collections.abc import Iterator

import pytest
import torch

from agentrl.errors import PushError
from agentrl.serving.buckets import BucketStream, StagingBuffers, make_buckets
from tests.unit.scripted_engines import Cluster, cluster, some_weights

pytestmark = pytest.mark.slow

__all__ = ["cluster"]  # a fixture of these tests too


def test_every_engine_gets_all_tensors_and_the_version_comes_with_the_last(
    cluster: Cluster,
) -> None:
    weights, sink = some_weights(1), cluster.sink("e0", "e1")
    report = sink.publish(7, weights.items())
    cluster.assert_serving(7, weights, "e0", "e1")
    assert report.num_bytes == sum(tensor.nbytes for tensor in weights.values())
    assert report.engines == ("e0", "e1")
    calls = [call for call in cluster.engines["e0"].calls if call != "/model_info"]
    assert calls == [
        "/destroy_weights_update_group",
        "/init_weights_update_group",
        "/pause_generation",
        "/begin_weight_update",
        *["/update_weights_from_distributed"] * 3,
        "/end_weight_update",
        "/continue_generation",
    ]


def test_the_next_bucket_is_gathered_while_engines_load_the_one_before(cluster: Cluster) -> None:
    gathered = threading.Event()
    met: list[bool] = []

    def tensors() -> Iterator[tuple[str, torch.Tensor]]:
        yield "a", torch.ones(100)
        yield "b", torch.ones(100)
        gathered.set()

    cluster.engines["e0"].on_bucket = lambda: met.append(gathered.wait(20))
    cluster.sink("e0").publish(1, tensors())
    assert met == [True] * 2


def test_engines_say_what_they_hold_while_the_first_bucket_is_gathered(cluster: Cluster) -> None:
    sink, asked = cluster.sink("e0"), threading.Event()
    sink.publish(1, some_weights(1).items())
    sink.inspect()
    met: list[bool] = []

    def tensors() -> Iterator[tuple[str, torch.Tensor]]:
        met.append(asked.wait(20))
        yield from some_weights(2).items()

    cluster.engines["e0"].before_checksum = asked.set
    sink.publish(2, tensors())
    assert met == [True]


def test_a_push_is_for_the_model_that_samples_and_not_for_its_draft(cluster: Cluster) -> None:
    cluster.sink("e0").publish(1, some_weights(1).items())
    assert cluster.engines["e0"].selectors == {"target"}


def test_a_push_is_for_a_draft_too_that_the_learner_trains(cluster: Cluster) -> None:
    weights = some_weights(1)
    cluster.sink("e0", pushes_draft=True).publish(1, weights.items())
    assert cluster.engines["e0"].selectors == {"all"}
    cluster.assert_serving(1, weights, "e0")


def test_a_push_drops_the_cache_that_older_weights_filled(cluster: Cluster) -> None:
    sink = cluster.sink("e0")
    for version in (1, 2):
        sink.publish(version, some_weights(version).items())
    engine = cluster.engines["e0"]
    assert engine.pauses == ["retract"] * 2
    assert engine.drops == [False, False, True] * 2


def test_engines_that_keep_their_caches_are_paused_in_place_after_the_first_push(
    cluster: Cluster,
) -> None:
    """What engines have of an earlier life of the learner, nobody knows. And requests that were
    put back would read a cache that stayed as if it were new."""
    sink = cluster.sink("e0", keeps_cache=True)
    for version in (1, 2, 3):
        sink.publish(version, some_weights(version).items())
    engine = cluster.engines["e0"]
    assert engine.pauses == ["retract", "in_place", "in_place"]
    assert engine.drops == [False, False, True, *[False] * 6]
    cluster.assert_serving(3, some_weights(3), "e0")


def test_the_collective_lives_on_for_the_next_push(cluster: Cluster) -> None:
    sink = cluster.sink("e0", "e1")
    for version in (1, 2, 3):
        sink.publish(version, some_weights(version).items())
    cluster.assert_serving(3, some_weights(3), "e0", "e1")
    assert cluster.engines["e1"].calls.count("/init_weights_update_group") == 1


def test_engines_are_split_into_fleets_and_all_wait_for_all(cluster: Cluster) -> None:
    sink = cluster.sink("e0", "e1", "e2", fleet_size=2)
    paused: list[bool] = []
    for engine in cluster.engines.values():
        engine.on_bucket = lambda: paused.append(
            all(engine.paused for engine in cluster.engines.values())
        )
    sink.publish(1, some_weights(1).items())
    cluster.assert_serving(1, some_weights(1), "e0", "e1", "e2")
    assert all(paused)


def test_an_engine_that_dies_in_a_push_is_reported_and_the_rest_get_everything(
    cluster: Cluster,
) -> None:
    weights, sink = some_weights(1), cluster.sink("e0", "e1", "e2")
    cluster.engines["e1"].on_bucket = cluster.engines["e1"].die
    one_shot = iter(weights.items())
    report = sink.publish(4, one_shot)
    assert cluster.lost == ["e1"]
    assert report.engines == ("e0", "e2")
    cluster.assert_serving(4, weights, "e0", "e2")
    sink.publish(5, some_weights(5).items())
    cluster.assert_serving(5, some_weights(5), "e0", "e2")
    assert cluster.lost == ["e1"]


def test_a_fleet_that_lost_a_member_catches_up_while_the_others_wait(cluster: Cluster) -> None:
    weights, sink = some_weights(1), cluster.sink("e0", "e1", "e2", fleet_size=2)
    cluster.engines["e1"].on_bucket = cluster.engines["e1"].die
    sink.publish(4, weights.items())
    cluster.assert_serving(4, weights, "e0", "e2")
    assert cluster.engines["e2"].calls.count("/update_weights_from_distributed") == 3


def test_an_engine_that_answers_but_keeps_refusing_is_lost_after_a_second_try(
    cluster: Cluster,
) -> None:
    weights, sink = some_weights(1), cluster.sink("e0", "e1")
    cluster.engines["e1"].refused_buckets = range(2, 100)
    report = sink.publish(2, weights.items())
    assert report.engines == ("e0",)
    assert cluster.lost == ["e1"]
    cluster.assert_serving(2, weights, "e0")


def test_one_refusal_alone_costs_no_engine(cluster: Cluster) -> None:
    weights, sink = some_weights(1), cluster.sink("e0", "e1")
    cluster.engines["e1"].refused_buckets = {1}
    sink.publish(2, weights.items())
    cluster.assert_serving(2, weights, "e0", "e1")
    assert cluster.lost == []
    # It left the collective at once, so that nobody waited for it until the deadline, again when
    # the collective was dissolved, and before it joined, each time.
    assert cluster.engines["e1"].calls.count("/destroy_weights_update_group") == 4


def test_an_engine_that_hangs_is_lost_at_the_deadline(cluster: Cluster) -> None:
    weights, sink = some_weights(1), cluster.sink("e0", "e1", timeout_s=1)
    cluster.engines["e1"].on_bucket = cluster.engines["e1"].hung.set
    report = sink.publish(2, weights.items())
    assert report.engines == ("e0",)
    assert cluster.lost == ["e1"]
    cluster.assert_serving(2, weights, "e0")


def test_an_engine_whose_scheduler_hangs_behind_its_server_costs_one_deadline_and_comes_back(
    cluster: Cluster,
) -> None:
    """The first push finds it out by one call. Later ones ask whether it is back, and no more."""
    sink, engine = cluster.sink("e0", "e1", timeout_s=2), cluster.engines["e1"]
    sink.publish(1, some_weights(1).items())
    sink.inspect()
    engine.calls.clear()
    engine.stuck.set()
    for version in (2, 3, 4):
        report = sink.publish(version, some_weights(version).items())
        assert report.engines == ("e0",)
        assert set(engine.calls) - {"/model_info", "/weights_checker"} == {"/server_info"}
    assert engine.calls.count("/weights_checker") == 1
    assert engine.calls.count("/server_info") == 3
    assert cluster.lost == ["e1"]
    engine.stuck.clear()
    weights = some_weights(5)
    sink.publish(5, weights.items())
    cluster.assert_serving(5, weights, "e0", "e1")


def test_an_engine_that_was_lost_takes_part_again_once_it_answers(cluster: Cluster) -> None:
    sink = cluster.sink("e0", "e1")
    cluster.engines["e1"].die()
    assert sink.publish(1, some_weights(1).items()).engines == ("e0",)
    assert sink.publish(2, some_weights(2).items()).engines == ("e0",)
    assert cluster.lost == ["e1"]
    cluster.engines["e1"].dead.clear()
    report = sink.publish(3, some_weights(3).items())
    assert sorted(report.engines) == ["e0", "e1"]
    cluster.assert_serving(3, some_weights(3), "e0", "e1")


@pytest.mark.parametrize("dies_before", [True, False], ids=["it was missed", "nobody missed it"])
def test_an_engine_that_is_elsewhere_takes_part_there(cluster: Cluster, dies_before: bool) -> None:
    """The successor bears its name. One that the sink never knew takes part as well."""
    sink = cluster.sink("e0", "e1")
    sink.publish(1, some_weights(1).items())
    cluster.engines["e1"].die()
    if dies_before:
        assert sink.publish(2, some_weights(2).items()).engines == ("e0",)
    new = [cluster.addresses["e0"], cluster.move("e1"), cluster.move("e2")]
    sink.moved(new)
    report = sink.publish(3, some_weights(3).items())
    assert sorted(report.engines) == ["e0", "e1", "e2"]
    cluster.assert_serving(3, some_weights(3), "e0", "e1", "e2")
    assert cluster.lost == (["e1"] if dies_before else [])
    assert sorted(engine.name for engine in sink.engines) == ["e0", "e1", "e2"]
    sink.moved(new)
    assert len(sink.publish(4, some_weights(4).items()).engines) == 3


def test_the_only_engine_may_be_elsewhere(cluster: Cluster) -> None:
    sink = cluster.sink("e0")
    sink.publish(1, some_weights(1).items())
    cluster.engines["e0"].die()
    sink.moved([cluster.move("e0")])
    assert sink.publish(2, some_weights(2).items()).engines == ("e0",)
    cluster.assert_serving(2, some_weights(2), "e0")


def test_a_push_without_any_engine_waits_for_one_to_come_back(cluster: Cluster) -> None:
    sink = cluster.sink("e0")
    cluster.engines["e0"].die()
    revival = threading.Timer(0.5, cluster.engines["e0"].dead.clear)
    revival.start()
    sink.publish(1, iter(list(some_weights(1).items())))
    revival.join()
    cluster.assert_serving(1, some_weights(1), "e0")


def test_a_push_without_any_engine_left_fails_at_the_deadline(cluster: Cluster) -> None:
    sink = cluster.sink("e0", timeout_s=0.1)
    cluster.engines["e0"].die()
    with pytest.raises(PushError, match="reached no engine"):
        sink.publish(1, some_weights(1).items())
    assert cluster.lost == ["e0"]
    with pytest.raises(PushError, match="reached no engine"):
        sink.publish(2, some_weights(1).items())


def test_a_push_without_tensors_fails_before_anyone_is_paused(cluster: Cluster) -> None:
    sink = cluster.sink("e0")
    with pytest.raises(PushError, match="no tensors"):
        sink.publish(1, [])
    assert cluster.engines["e0"].calls == []


def test_engines_stay_paused_when_the_tensors_fail_and_the_next_push_heals_them(
    cluster: Cluster,
) -> None:
    sink = cluster.sink("e0", "e1")

    def broken() -> Iterator[tuple[str, torch.Tensor]]:
        yield "a.weight", torch.zeros(100)
        yield "b.weight", torch.zeros(100)
        raise OSError("the source failed")

    with pytest.raises(OSError, match="the source failed"):
        sink.publish(1, broken())
    assert cluster.engines["e0"].paused
    assert cluster.engines["e0"].version == "none"
    sink.publish(2, some_weights(2).items())
    cluster.assert_serving(2, some_weights(2), "e1")
    assert not cluster.engines["e0"].paused


def test_buckets_are_aligned_bounded_and_complete() -> None:
    tensors = [
        ("odd", torch.arange(3, dtype=torch.uint8)),
        ("wide", torch.arange(4, dtype=torch.float64)),
        ("half", torch.ones(3, dtype=torch.bfloat16)),
        ("huge", torch.ones(50)),
        ("scalar", torch.tensor(2.5)),
    ]
    buckets = list(make_buckets(tensors, 64))
    assert [bucket.names for bucket in buckets] == [["odd"], ["wide", "half"], ["huge"], ["scalar"]]
    assert [bucket.last for bucket in buckets] == [False, False, False, True]
    assert buckets[1].dtypes == ["float64", "bfloat16"]
    assert buckets[1].payload[:32].view(torch.float64).tolist() == [0, 1, 2, 3]
    assert buckets[3].shapes == [[]]


def test_buckets_are_packed_into_two_staging_buffers_in_turn_which_are_kept() -> None:
    staging, weights = StagingBuffers(), [(name, torch.full((10,), float(name))) for name in "1234"]
    stream = BucketStream(weights, 40, None, staging)
    places = list[int]()
    for _ in range(2):
        for bucket in stream:
            name = float(bucket.names[0])
            assert torch.equal(bucket.payload.view(torch.float32), torch.full((10,), name))
            places.append(bucket.payload.data_ptr())
    assert places == places[:2] * 4
    assert len(set(places)) == 2


def test_staging_buffers_that_may_still_be_read_are_not_written_again() -> None:
    staging = StagingBuffers()
    first = staging.next(40)
    staging.next(40)
    staging.abandon()
    assert staging.next(40).data_ptr() != first.data_ptr()


def test_a_push_that_is_sent_again_abandons_the_buffers_of_the_one_before(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = cluster.sink("e0", "e1")
    left: list[bool] = []
    assert sink._staging is not None
    staging, abandon = sink._staging, sink._staging.abandon

    def abandon_and_say() -> None:
        left.append(True)
        abandon()

    monkeypatch.setattr(staging, "abandon", abandon_and_say)
    weights = some_weights(1)
    sink.publish(1, weights.items())
    assert left == []
    cluster.engines["e1"].on_bucket = cluster.engines["e1"].die
    sink.publish(2, weights.items())
    assert left == [True]
    cluster.assert_serving(2, weights, "e0")


def test_tensors_that_an_engine_joins_to_one_parameter_share_a_bucket() -> None:
    """SGLang forgets one that comes without the other."""
    names = ["q_a_proj", "kv_a_proj_with_mqa", "kv_b_proj", "experts.0.w1", "experts.1.w1"]
    tensors = [(f"model.layers.0.{name}.weight", torch.ones(10)) for name in names]
    fused = {"fused_a": ("q_a_proj", "kv_a_proj_with_mqa"), "w13": ("experts.{expert}.w1.weight",)}
    stream = BucketStream(tensors, 50, fused)
    for buckets in (list(stream), list(stream)):
        short = [[name.split(".", 3)[3] for name in bucket.names] for bucket in buckets]
        assert short == [
            ["q_a_proj.weight", "kv_a_proj_with_mqa.weight"],
            *([f"{name}.weight"] for name in names[2:]),
        ]


def test_the_only_engine_is_lost_as_a_push_begins_and_comes_back_to_it(cluster: Cluster) -> None:
    """It has a group of its fleet's name, which must be free when it is met again."""
    sink = cluster.sink("e0")
    sink.publish(1, some_weights(1).items())
    engine = cluster.engines["e0"]
    engine.die()

    def come_back() -> None:
        while not cluster.lost:
            time.sleep(0.05)
        engine.version = "none"
        engine.dead.clear()

    successor = threading.Thread(target=come_back, daemon=True)
    successor.start()
    sink.publish(2, some_weights(2).items())
    successor.join(300)
    assert cluster.lost == ["e0"]
    cluster.assert_serving(2, some_weights(2), "e0")
