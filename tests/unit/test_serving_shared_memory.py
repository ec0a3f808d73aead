"""Weights through memory that engines share with the sender, against scripted engines."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from agentrl.errors import PushError
from agentrl.serving.buckets import make_buckets
from agentrl.serving.shared_memory import handle_of, shared_buffer
from agentrl.serving.weights import FleetWeightSink
from tests.unit.scripted_engines import Cluster, cluster, some_weights

pytestmark = pytest.mark.slow

__all__ = ["cluster"]  # a fixture of these tests too


@pytest.fixture
def sink(cluster: Cluster) -> FleetWeightSink:
    return cluster.sink("e0", "e1", shares_memory=True)


def test_engines_of_this_host_read_every_bucket_and_join_no_collective(
    cluster: Cluster, sink: FleetWeightSink
) -> None:
    for version in (1, 2):
        weights = some_weights(version)
        report = sink.publish(version, weights.items())
        cluster.assert_serving(version, weights, "e0", "e1")
        assert report.engines == ("e0", "e1")
    calls = [call for call in cluster.engines["e0"].calls if call != "/model_info"]
    assert calls == 2 * [
        "/pause_generation",
        "/begin_weight_update",
        *["/update_weights_from_tensor"] * 3,
        "/end_weight_update",
        "/continue_generation",
    ]
    assert cluster.engines["e0"].selectors == {"target"}
    assert cluster.engines["e0"].drops == 2 * [False, False, True]


def test_engines_of_other_hosts_get_the_same_push_over_a_collective(cluster: Cluster) -> None:
    near = cluster.addresses["e0"]
    sink = cluster.sink("e1", shares_memory=True)
    sink.moved([replace(near, url=near.url.replace("127.0.0.1", "localhost"))])
    weights = some_weights(1)
    sink.publish(1, weights.items())
    cluster.assert_serving(1, weights, "e0", "e1")
    assert "/update_weights_from_distributed" in cluster.engines["e0"].calls
    assert "/update_weights_from_distributed" not in cluster.engines["e1"].calls


def test_an_engine_that_dies_in_a_push_is_reported_and_the_rest_get_everything(
    cluster: Cluster, sink: FleetWeightSink
) -> None:
    cluster.engines["e1"].on_bucket = cluster.engines["e1"].die
    weights = some_weights(1)
    assert sink.publish(1, weights.items()).engines == ("e0",)
    assert cluster.lost == ["e1"]
    cluster.assert_serving(1, weights, "e0")


def test_tensors_that_come_once_are_sent_again_from_shared_memory_too(
    cluster: Cluster, sink: FleetWeightSink
) -> None:
    cluster.engines["e1"].on_bucket = cluster.engines["e1"].die
    weights = some_weights(1)
    assert sink.publish(1, iter(weights.items())).engines == ("e0",)
    cluster.assert_serving(1, weights, "e0")


def test_one_refusal_costs_no_engine_and_a_second_in_a_row_does(
    cluster: Cluster, sink: FleetWeightSink
) -> None:
    cluster.engines["e0"].refused_buckets = [2]
    weights = some_weights(1)
    assert sink.publish(1, weights.items()).engines == ("e0", "e1")
    cluster.engines["e1"].refused_buckets = range(1, 20)
    assert sink.publish(2, weights.items()).engines == ("e0",)
    assert cluster.lost == ["e1"]
    cluster.assert_serving(2, weights, "e0")


def test_a_bucket_is_read_in_another_process_and_its_file_ends_with_the_sender(
    tmp_path: Path,
) -> None:
    reader = "import pickle, sys; print(pickle.load(sys.stdin.buffer)['flattened_tensor'].sum())"
    sender = f"""
import subprocess, sys, torch
from agentrl.serving.buckets import StagingBuffers, make_buckets
from agentrl.serving.shared_memory import handle_of, shared_buffer

staging = StagingBuffers(shared_buffer)
for number in (1, 2, 1):  # the second one is larger
    tensor = torch.full((number,), number, dtype=torch.uint8)
    [bucket] = make_buckets([("a", tensor)], 100, None, staging)
    for _ in range(2):
        command = [sys.executable, "-c", {reader!r}]
        subprocess.run(command, input=handle_of(bucket, 1), check=True)
print(bucket.payload.untyped_storage()._share_filename_cpu_()[1].decode())
"""
    said = subprocess.run(
        [sys.executable, "-c", sender], capture_output=True, text=True, check=True
    ).stdout.split()
    assert [text for text in said if text.startswith("tensor")] == [
        f"tensor({total})" for total in (1, 1, 4, 4, 1, 1)
    ]
    assert not Path("/dev/shm", said[-1].removeprefix("/")).exists()


def test_a_host_without_shared_memory_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise RuntimeError("unable to allocate shared memory(shm): No space left on device (28)")

    monkeypatch.setattr(torch.UntypedStorage, "_share_filename_cpu_", full)
    with pytest.raises(PushError, match=r"^40 bytes of weights do not .*/dev/shm.*--shm-size"):
        shared_buffer(40)


def test_a_bucket_that_no_other_process_could_read_is_refused() -> None:
    [bucket] = make_buckets([("a", torch.ones(10))], 100)
    with pytest.raises(PushError, match="is not in a shared buffer"):
        handle_of(bucket, 1)
