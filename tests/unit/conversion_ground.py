"""Functions that convert the samples of a lease, and leases that are trained with one."""

import itertools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentrl.algorithms.load import load_algorithm
from agentrl.config.run import RunConfig
from agentrl.learner.hooks import LearnerHooks
from agentrl.learner.iteration import IterationResult, train_lease
from agentrl.types import GroupRows
from tests.parity.golden import Batch, lineage
from tests.parity.test_estimators import Watched

SEEN: list[Any] = []
FLAG = "custom_convert_samples_to_train_data_path"


def slimes(args: Any, samples: Any) -> dict[str, Any]:
    """What slime's own conversion does, with rewards against the mean of the group: each field of a
    sample that it looks at, and each key that it returns."""
    from slime.utils.data import get_source  # type: ignore[import-not-found, unused-ignore]
    from slime.utils.types import Sample  # type: ignore[import-not-found, unused-ignore]

    by_group: dict[int, list[float]] = {}
    for sample in samples:
        by_group.setdefault(sample.group_index, []).append(sample.get_reward_value(args))
    means = {index: sum(found) / len(found) for index, found in by_group.items()}
    data: dict[str, Any] = {
        "tokens": [sample.tokens for sample in samples],
        "response_lengths": [sample.response_length for sample in samples],
        "rewards": [s.get_reward_value(args) - means[s.group_index] for s in samples],
        "raw_reward": [sample.get_reward_value(args) for sample in samples],
        "truncated": [int(s.status == Sample.Status.TRUNCATED) for s in samples],
        "sample_indices": [sample.index for sample in samples],
    }
    data["loss_masks"] = []
    for sample in samples:
        if sample.loss_mask is None:
            sample.loss_mask = [1] * sample.response_length
        assert len(sample.loss_mask) == sample.response_length
        if sample.remove_sample:
            sample.loss_mask = [0] * sample.response_length
        data["loss_masks"].append(sample.loss_mask)
    free = (number for number in itertools.count() if all(s.rollout_id != number for s in samples))
    data["rollout_ids"] = [next(free) if s.rollout_id is None else s.rollout_id for s in samples]
    totals: Counter[int] = Counter()
    for rollout, mask in zip(data["rollout_ids"], data["loss_masks"], strict=True):
        totals[rollout] += sum(mask)
    data["rollout_mask_sums"] = [totals[rollout] for rollout in data["rollout_ids"]]
    if any("raw_reward" in (sample.metadata or {}) for sample in samples):
        data["raw_reward"] = [s.metadata.get("raw_reward", s.reward) for s in samples]
    if "round_number" in (samples[0].metadata or {}):
        data["round_number"] = [sample.metadata["round_number"] for sample in samples]
    if getattr(args, "rollout_top_p", 1.0) != 1.0:
        assert all(sample.rollout_top_p_token_offsets is not None for sample in samples)
        data["rollout_top_p_token_ids"] = [sample.rollout_top_p_token_ids for sample in samples]
    for key, field in (
        ("rollout_log_probs", "rollout_log_probs"),
        ("rollout_routed_experts", "rollout_routed_experts"),
        ("metadata", "train_metadata"),
        ("teacher_log_probs", "teacher_log_probs"),
    ):
        if getattr(samples[0], field) is not None:
            data[key] = [getattr(sample, field) for sample in samples]
    if any(sample.multimodal_train_inputs is not None for sample in samples):
        data["multimodal_train_inputs"] = [sample.multimodal_train_inputs for sample in samples]
    if samples[0].metadata is not None:
        data["source_names"] = [get_source(sample) for sample in samples]
    return data


def by_the_mean(groups: Sequence[GroupRows]) -> list[list[float]]:
    """For `--custom-reward-post-process-path`: the rewards of `slimes`, where each segment counts
    in the mean of its group."""
    found = []
    for group in groups:
        rewards = dict(zip(group.episodes, group.rewards, strict=True))
        mean = sum(rewards[row.episode] for row in group.trajectories) / len(group.trajectories)
        found.append([reward - mean for reward in group.rewards])
    return found


def noted(args: Any, samples: Any) -> dict[str, Any]:
    SEEN.append(samples)
    return {"rewards": [sample.reward for sample in samples]}


def best_of_each(args: Any, groups: Any) -> None:
    for group in groups:
        max(group, key=lambda sample: sample.reward).remove_sample = True


def of(name: str) -> dict[str, Any]:
    """The flag with that function of this file."""
    return {FLAG: f"{__name__}:{name}"}


def train(cfg: RunConfig, batch: Batch | None = None) -> tuple[Batch, Any, IterationResult]:
    batch, backend = batch or Batch(2), Watched(2)
    parts = (batch.header, load_algorithm(cfg), backend, lineage(), batch.fetch)
    return batch, backend, train_lease(*parts, LearnerHooks(cfg))


def written(folder: Path, body: str, **flags: Any) -> RunConfig:
    """A run with a function of that body, which begins from `data`: what is all there."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    file = folder / f"mine{len([*folder.iterdir()])}.py"
    file.write_text(
        "import torch\n\n"
        "def mine(args, samples):\n"
        "    data = {\n"
        "        'tokens': [list(s.tokens) for s in samples],\n"
        "        'response_lengths': [s.response_length for s in samples],\n"
        "        'rewards': [s.reward for s in samples],\n"
        "        'sample_indices': [s.index for s in samples],\n"
        "        'loss_masks': [list(s.loss_mask) for s in samples],\n"
        "        'rollout_log_probs': [list(s.rollout_log_probs) for s in samples],\n"
        "    }\n"
        f"{lines}    return data\n"
    )
    own: dict[str, Any] = {FLAG: str(file)}
    return RunConfig(max_staleness=8, **own, **flags)
