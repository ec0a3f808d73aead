"""A whole run (see `whole_loop`) whose episodes a function of `--rollout-function-path` plays, many
groups in one call: what it returns is judged, stored, leased and trained like any other episode."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal

from agentrl.buffer import audit
from agentrl.types import Fate
from tests.integration.test_sync_equals_async import EPISODES, GROUPS, Ground, Played, play

pytestmark = pytest.mark.timeout(1800)

ITERATIONS = 3
#: Ids of the tokenizer of tests; the model has more.
IDS = 355
#: It asks for each sample, and rewards by the length of the answer and its number; where
#: LEAVES_OUT, it leaves out every third group.
FUNCTION = """
import asyncio
from slime.rollout.base_types import RolloutFnTrainOutput
from slime.utils.async_utils import run
from slime.utils.http_utils import post


async def played(args, sample):
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
    output = await post(url, {
        "text": sample.prompt,
        "sampling_params": args.sampling_params,
        "return_logprob": True,
        "logprob_start_len": 0,
    })
    said = output["meta_info"]
    sample.tokens = [pair[1] for pair in said["input_token_logprobs"]]
    sample.append_response_tokens(
        args,
        tokens=[pair[1] for pair in said["output_token_logprobs"]],
        log_probs=[pair[0] for pair in said["output_token_logprobs"]],
        meta_info=said,
        text=output["text"],
    )
    sample.reward = float((len(sample.response.encode()) + sample.index) % 3)
    return sample


async def played_all(args, groups):
    return await asyncio.gather(
        *(asyncio.gather(*(played(args, sample) for sample in group)) for group in groups)
    )


def generate_rollout(args, rollout_id, data_source, evaluation=False):
    groups = data_source.get_samples(args.rollout_batch_size)
    groups = run(played_all(args, groups))
    kept = [list(group) for group in groups if group[0].group_index % 3 or not LEAVES_OUT]
    return RolloutFnTrainOutput(samples=kept, metrics={"rollout/calls": rollout_id})
"""


def function(folder: Path, *, leaves_out: bool) -> Path:
    path = folder / f"mine_{int(leaves_out)}.py"
    path.write_text(f"{FUNCTION}\nLEAVES_OUT = {leaves_out}\n")
    return path


@pytest.fixture(scope="module")
def ground(tmp_path_factory: Any, qwen_tokenizer_json: str) -> Iterator[Ground]:
    with start_blocking_portal("asyncio") as portal:
        yield Ground(tmp_path_factory.mktemp("function"), qwen_tokenizer_json, portal)


def trained(ground: Ground, program: Any, name: str, *flags: str, leaves_out: bool) -> Played:
    path = function(ground.folder, leaves_out=leaves_out)
    env = ["--env", "generate", "--rollout-function-path", str(path), "--num-agent-workers", "1"]
    config = ground.config(program, name, *env, *flags, "--num-rollout", str(ITERATIONS))
    return play(ground, config, num_ids=IDS)


def test_what_a_function_of_slimes_signature_returns_is_trained(ground: Ground) -> None:
    played = trained(ground, "train", "sync", leaves_out=False)
    report = audit(played.run)
    assert report.problems == ()
    assert report.fates == {Fate.TRAINED: ITERATIONS * GROUPS}
    digests = [digest for _, digest in played.pushed]
    assert len(set(digests)) == len(digests) == ITERATIONS + 1, "an iteration changed no weight"
    rows = [row for lease in played.leases for group in lease.groups for row in group.trajectories]
    assert len({row.episode for row in rows}) == len(rows) == ITERATIONS * GROUPS * EPISODES
    versions = [{version for version, _ in row.meta.versions} for row in rows]
    assert versions == [{n} for n in range(ITERATIONS) for _ in range(GROUPS * EPISODES)]
    assert {row.meta.num_turns for row in rows} == {1}


def test_a_group_that_it_leaves_out_is_filtered_and_another_is_trained(ground: Ground) -> None:
    played = trained(ground, "train_async", "ahead", leaves_out=True)
    report = audit(played.run)
    assert report.problems == ()
    assert report.fates[Fate.TRAINED] == ITERATIONS * GROUPS
    assert report.fates[Fate.FILTERED] >= 1
