"""What a learner's step and a push make the host wait for: nothing for a layer, little for a step,
and no copy of a weight. Seen on the CPU by what torch is asked for; a GPU would stand still there.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from agentrl.algorithms.load import load_algorithm
from agentrl.algorithms.mismatch import with_mismatch
from agentrl.algorithms.rows import LossFn, MicroBatch
from agentrl.config.run import RunConfig
from agentrl.serving.buckets import BucketStream
from benchmarks.host_traffic import HostTraffic
from benchmarks.push_copies import copies_of_push
from tests.parity.one_process import Open, open_backend

__all__ = ["open_backend"]

AGAIN = {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
}
MEGATRON = "agentrl.learner.megatron"
#: By place, what a step of one micro-batch asks of the host today. It may fall.
STEP: Counter[tuple[str, str]] = Counter(
    {
        ("agentrl.learner.measures._read", "tolist"): 1,
        (f"{MEGATRON}.attention.lengths_of", "tolist"): 1,
        (f"{MEGATRON}.laid_out._lengths", "tolist"): 1,
        (f"{MEGATRON}.passes.backward_pass", "_local_scalar_dense"): 1,
        (f"{MEGATRON}.rotary._positions_of", "repeat_interleave"): 1,
        ("megatron.core.optimizer.clip_grads.get_grad_norm_fp32", "_local_scalar_dense"): 1,
        ("megatron.core.utils.local_multi_tensor_l2_norm", "_local_scalar_dense"): 1,
    }
)
#: Torch's AdamW counts the steps of each parameter on the host, unless it is fused.
COUNTS_ON_THE_HOST = "torch.optim."


#: The same of a run's own loss, measured beside its engines, however old its tokens are.
REAL_STEP = STEP + Counter({("agentrl.algorithms.policy_loss.policy_loss", "nonzero"): 1})
#: Operations that the measures of engines start for a micro-batch.
MEASURING = 85


def asked_in_step(backend: Any, batch: Any, loss: LossFn) -> tuple[Counter[tuple[str, str]], int]:
    """By place, and how many operations were started, of a step that is not the first one."""
    backend.step("policy", [batch], loss)
    with HostTraffic() as traffic:
        backend.step("policy", [batch], loss)
    found = traffic.syncs + traffic.copies
    counted = {what: n for what, n in found.items() if not what[0].startswith(COUNTS_ON_THE_HOST)}
    return Counter(counted), traffic.launches


@pytest.mark.parametrize("megatron", [{}, AGAIN], ids=["kept", "recomputed"])
def test_a_step_asks_little_of_the_host_and_a_layer_nothing(
    megatron: dict[str, Any],
    hf_model: Any,
    packed: Any,
    pg_loss: LossFn,
    open_backend: Open,
) -> None:
    batch = packed([30, 7], 1)
    found = {}
    for name in ("qwen3", "qwen3-3layers"):
        backend = open_backend(hf_model(name).directory, megatron)
        found[name], _ = asked_in_step(backend, batch, pg_loss)
        backend.close()
    assert found["qwen3-3layers"] == found["qwen3"], "a layer asks something of the host"
    assert not found["qwen3"] - STEP, "a step asks more of the host than it did"


def real_loss(max_age: int, *, measures: bool = True) -> LossFn:
    """Of the default estimator; `measures`: as where a run has engines."""
    algorithm = load_algorithm(RunConfig())
    loss: LossFn = partial(algorithm.loss, "policy")
    return with_mismatch(loss, max_age) if measures else loss


def with_ages(batch: MicroBatch, max_age: int) -> MicroBatch:
    """Tokens of all ages, half of them over a cache that older weights filled."""
    ages_T = torch.arange(len(batch.tokens_T)) % (max_age + 1)
    sampled_T = torch.ones_like(ages_T, dtype=torch.bool)
    told = {"sampled": sampled_T, "ages": ages_T, "cached": ages_T // 2}
    return replace(batch, columns={**batch.columns, **told})


@pytest.mark.parametrize("max_age", [0, 8])
def test_a_runs_own_loss_asks_little_of_the_host_however_old_tokens_are(
    max_age: int, hf_model: Any, packed: Any, open_backend: Open
) -> None:
    batch = with_ages(packed([30, 7], 1), max_age)
    backend = open_backend(hf_model("qwen3").directory)
    asked, launches = asked_in_step(backend, batch, real_loss(max_age))
    _, without = asked_in_step(backend, batch, real_loss(max_age, measures=False))
    assert not asked - REAL_STEP, "a step asks more of the host than it did"
    assert launches - without <= MEASURING


def test_more_tokens_start_no_more_operations(
    hf_model: Any, packed: Any, pg_loss: LossFn, open_backend: Open
) -> None:
    """The kernels of log-probabilities were once cut so small that each token took eight."""
    backend = open_backend(hf_model("qwen3").directory)
    _, few = asked_in_step(backend, packed([60, 14], 1), pg_loss)
    _, many = asked_in_step(backend, packed([90, 60], 1), pg_loss)
    assert many <= few


def test_the_export_of_a_push_copies_nothing_and_asks_nothing(
    hf_model: Any, open_backend: Open
) -> None:
    backend = open_backend(hf_model("qwen3").directory)
    traffic = copies_of_push(backend, bucket_bytes=1 << 16)
    assert (traffic.copied_bytes, traffic.syncs, traffic.copies) == (0, Counter(), Counter())
    with HostTraffic() as seen:  # what is gathered but once is kept on the host
        sent = sum(each.payload.nbytes for each in BucketStream(backend.hf_tensors(), 1 << 16))
    assert seen.copied_bytes == sent > 0


def test_each_way_to_ask_is_seen() -> None:
    some = torch.arange(6.0)
    ways: dict[str, Callable[[], object]] = {
        "_local_scalar_dense": lambda: (float(some[0]), bool(some[1]), int(some.sum())),
        "nonzero": lambda: some.nonzero(),
        "index": lambda: some[some > 1],
        "index_put_": lambda: some.clone().__setitem__(some > 1, torch.ones(4)),
        "masked_select": lambda: some.masked_select(some > 1),
        "equal": lambda: torch.equal(some, some),
        "cpu": lambda: some.cpu(),
        "tolist": lambda: some.tolist(),
        "numpy": lambda: some.numpy(),
        "to": lambda: (some.to("cpu"), some.to(device="cpu")),
    }
    here = f"{__name__}.<lambda>"
    for name, ask in ways.items():
        with HostTraffic() as traffic:
            ask()
        assert set(traffic.syncs + traffic.copies) == {(here, name)}, name
    with HostTraffic() as traffic:
        some[torch.tensor([1, 2])].view(2).to(some.device).add(1).to(torch.float64)
    assert not traffic.syncs + traffic.copies
    assert traffic.launches > 0
