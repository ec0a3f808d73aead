"""Every combination of the asynchronous knobs is accepted, or refused with its numbers.

The expected answer of a cell is said here by arithmetic of its own; what is accepted is then played
on the buffer's core: the learner gets its leases, and no token beyond the bound under `drop`.
"""

import json
from itertools import product

import msgspec
import pytest

from agentrl.buffer.settings import BufferSettings
from agentrl.config.run import RunConfig, StalenessPolicy
from agentrl.config.validate import validate
from agentrl.errors import ConfigError
from agentrl.types import SamplingParams
from tests.unit.buffer_bench import bench

pytestmark = pytest.mark.slow

N, GROUP = 4, 4
AHEAD = (0, 1, 3)
INTERVAL = (1, 2, 4)
STALENESS = (None, 0, 1, 3)
OVER_SAMPLING = (None, 3, 4, 5, 8, 16, 17)
POLICIES: tuple[StalenessPolicy, ...] = ("mask", "drop")


def expected(b: int, i: int, s: int, over: int | None, least: int | None, steps: int) -> str | None:
    """What the refusal of this cell must say, or None."""
    if N % steps:
        return f"--num-steps-per-rollout {steps}: a step takes whole groups"
    if least is not None and least > GROUP:
        return f"--min-group-size {least} is more than --n-samples-per-prompt {GROUP}"
    if s + 1 < i:
        return f"--max-staleness {s} with --update-weights-interval {i}"
    if over is not None and over < N:
        return f"--over-sampling-batch-size {over} is less than --rollout-batch-size {N}"
    if over is not None and not fits(b, i, s, over):
        most = max(groups for groups in range(N, 100) if fits(b, i, s, groups))
        return f"min(B + 1, S - I + 2) x N = {most} groups"
    return None


def fits(b: int, i: int, s: int, over: int) -> bool:
    """Just after a push (I - 1) N + Q groups are minted and none is trained: whether their last
    batch is at most B iterations ahead of the next push, and at most S old when it is leased."""
    if s == 0:  # what is over is given up
        return True
    batches = -(-((i - 1) * N + over) // N)
    return batches - i <= b and batches - 1 <= s


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    path = tmp_path_factory.mktemp("model")
    shape = {"architectures": ["Qwen3ForCausalLM"], "max_position_embeddings": 1024}
    sizes = ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_size")
    (path / "config.json").write_text(json.dumps(shape | dict.fromkeys(sizes, 4)))
    return RunConfig(
        env="search-r1-local",
        hf_checkpoint=str(path),
        rollout_batch_size=N,
        n_samples_per_prompt=GROUP,
        rollout_max_response_len=64,
    )


def answer(config: RunConfig) -> str | None:
    try:
        validate(config)
    except ConfigError as refusal:
        return str(refusal)
    return None


@pytest.mark.parametrize("b", AHEAD)
@pytest.mark.parametrize("i", INTERVAL)
@pytest.mark.parametrize("s", STALENESS)
def test_every_cell_has_its_answer(good: RunConfig, b: int, i: int, s: int | None) -> None:
    switches = product(POLICIES, (True, False), (True, False))
    numbers = product(OVER_SAMPLING, (None, 1, GROUP, GROUP + 1), (1, 2, 3))
    for (policy, partial, masks), (over, least, steps) in product(switches, numbers):
        config = msgspec.structs.replace(
            good,
            async_buffer_size=b,
            update_weights_interval=i,
            max_staleness=s,
            staleness_policy=policy,
            partial_rollout=partial,
            mask_offpolicy_in_partial_rollout=masks,
            over_sampling_batch_size=over,
            min_group_size=least,
            num_steps_per_rollout=steps,
        )
        said = expected(b, i, config.staleness_bound, over, least, steps)
        found = answer(config)
        if said is None:
            assert found is None, config
            BufferSettings.from_config(config, "ipc://none", SamplingParams())
        else:
            assert found is not None, config
            assert said in found


def accepted() -> list[tuple[int, int, int, int | None]]:
    cells = product(AHEAD, INTERVAL, STALENESS, OVER_SAMPLING)
    filled = [(b, i, b + i - 1 if s is None else s, over) for b, i, s, over in cells]
    return sorted(
        {cell for cell in filled if expected(*cell, None, 1) is None},
        key=lambda cell: (*cell[:3], cell[3] or 0),
    )


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("cell", accepted(), ids=str)
def test_every_cell_that_is_accepted_trains(
    cell: tuple[int, int, int, int | None], policy: StalenessPolicy
) -> None:
    ahead, interval, staleness, over = cell
    b = bench(
        rollout_batch_size=N,
        n_samples_per_prompt=1,
        async_buffer_size=ahead,
        update_weights_interval=interval,
        max_staleness=staleness,
        over_sampling_batch_size=over,
        staleness_policy=policy,
    )
    version = 1
    for number in range(1, 3 * interval + 2):
        b.supply()
        assert len(b.core.state.unleased) >= (over or N), "too few groups are in the making"
        b.play_all("w0.1", versions=((version, 4),))
        header = b.lease(number)
        b.step(number)
        if policy == "drop":
            rows = [row for group in header.groups for row in group.trajectories]
            versions = {sampled for row in rows for sampled, _ in row.meta.versions}
            assert max(b.core.state.lineage.age(v, number) for v in versions) <= staleness
        if number % interval == 0:
            version += 1
            b.publish(version, version - 1, number)
