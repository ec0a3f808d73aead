"""Every estimator against the formulas of its papers (`papers.py`): values and gradients, on ragged
leases of several turns and segments, with masked tokens, in two steps of an iteration."""

from collections.abc import Sequence
from itertools import pairwise, product
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pytest
import torch
from msgspec.structs import replace

from agentrl.algorithms.load import load_algorithm
from agentrl.algorithms.ratios import Outside
from agentrl.algorithms.rows import Level, LossFn, MicroBatch, Outputs
from agentrl.config.command_line import read_flags
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.learner.backend import StepResult
from agentrl.learner.iteration import train_lease
from agentrl.learner.measures import Measures, joined, measured
from agentrl.shipped import ALGORITHMS, TRUST_REGIONS
from tests.parity import papers
from tests.parity.golden import LEASE, RATE, VALUE_RATE, Batch, TableBackend, lineage

BOUND = 2
_NORMAL: dict[str, Any] = {"normalize_advantages": True}
_KL: dict[str, Any] = {"use_kl_loss": True, "kl_loss_coef": 0.1, "kl_loss_type": "k3"}
#: What is set for each estimator, one case after the other.
CASES: dict[str, list[dict[str, Any]]] = {
    "grpo": [
        {},
        {"disable_grpo_std_normalization": True, "calculate_per_token_loss": True},
        {"disable_rewards_normalization": True, "eps_clip_c": 1.2},
        {"disable_grpo_std_normalization": True, "loss_length": 40},
        {"use_rollout_logprobs": True},
        {**_NORMAL, **_KL},
        {**_KL, "use_unbiased_kl": True},
    ],
    "gspo": [
        {"eps_clip": 0.02, "eps_clip_high": 0.03},
        {"use_tis": False, "eps_clip": 0.5},
        {"use_rollout_logprobs": True},
        {**_NORMAL, "loss_length": 40},
    ],
    "cispo": [{"eps_clip": 1.0, "eps_clip_high": 0.1, "calculate_per_token_loss": True}, {}],
    "opob": [{}, {"tis_level": "sequence", "tis_clip": 8.0}, {**_NORMAL, "loss_length": 40}],
    "ppo": [
        {"gamma": 0.9, "lambd": 0.8},
        {"kl_coef": 0.05, "value_clip": 0.05, **_NORMAL},
        {"kl_coef": 0.05, "lambd": 0.95, "use_rollout_logprobs": True, "loss_length": 40},
        {"gamma": 0.5, "lambd": 0.0, "calculate_per_token_loss": True, "eps_clip_c": 1.2},
    ],
    "reinforce_plus_plus": [
        {**_NORMAL, "kl_coef": 0.05, "gamma": 0.9},
        {**_NORMAL, "kl_coef": 0.05, "use_rollout_logprobs": True},
    ],
    "reinforce_plus_plus_baseline": [_NORMAL, {**_NORMAL, "kl_coef": 0.05}],
    "rloo": [{}, {"tis_clip_low": 0.5, "tis_clip": 1.5, "eps_clip_c": 1.2}],
}


#: Corrections of the distance between engine and learner, each on two estimators. The bounds are
#: such that of these leases some tokens are kept and some are not.
CORRECTIONS: list[dict[str, Any]] = [
    {"tis_mode": "mask", "tis_clip_low": 0.6, "tis_clip": 1.6},
    {"tis_level": "sequence", "tis_clip": 3.0},
    {"tis_level": "sequence", "tis_mode": "mask", "tis_clip_low": 1e-6, "tis_clip": 9.0},
    {"tis_level": "geometric", "tis_clip_low": 0.3, "tis_clip": 0.9},
    {"tis_level": "geometric", "tis_mode": "mask", "tis_clip_low": 0.4, "tis_clip": 1.1},
    *(
        {"trust_region": [text]}
        for text in (
            *("token:0.5:2", "sequence:1e-6:9", "geometric:0.4:1.1", "veto:0.02", "opsm:0.5"),
            *("dppo:0.02", "dppo-kl:0.002", "negative:0.8", "m2po:0.04"),
        )
    ),
    {"trust_region": ["negative:0.3", "veto:0.01", "m2po:1"], "use_rollout_logprobs": True},
]


#: On-policy distillation beside rewards, each on two estimators that credit otherwise.
DISTILLED: list[dict[str, Any]] = [
    {"use_opd": True},
    {"use_opd": True, "opd_kl_coef": 0.3, **_NORMAL, **_KL},
    {"use_opd": True, "use_rollout_logprobs": True},
]


def shown(flags: dict[str, Any]) -> str:
    return ",".join("+".join(flags[name]) if name == "trust_region" else name for name in flags)


class Watched(TableBackend):
    """Keeps the scores before each step, its loss, and the gradient by the log-probability of each
    label, by the tokens of the sequence."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.tables: list[torch.Tensor] = []
        self.losses: list[float] = []
        self.gradients: list[dict[bytes, npt.NDArray[np.float32]]] = []
        self.measures: list[Measures] = []
        #: Of the critic: its values before each step, what it measured, and the gradient by each.
        self.of_critic: list[tuple[torch.Tensor, Measures, dict[bytes, Any]]] = []

    def step(
        self,
        model: str,
        micro_batches: Sequence[MicroBatch],
        loss_fn: LossFn,
        lr_scale: float = 1.0,
    ) -> StepResult:
        """One step of gradient descent."""
        if model == "critic":
            return self._step_of_critic(micro_batches, loss_fn)
        table, gradient = self.table.detach().clone(), torch.zeros_like(self.table)
        reports, found = [], {}
        for batch in micro_batches:
            logprobs_TV = torch.log_softmax(self.table[batch.tokens_T], dim=-1)
            logprobs_T = logprobs_TV.gather(1, batch.labels_T[:, None]).squeeze(1)
            loss, report = loss_fn(batch, Outputs(logprobs_T, torch.zeros_like(logprobs_T)))
            by_token, by_score = torch.autograd.grad(loss, [logprobs_T, self.table])
            gradient += by_score
            reports.append(measured(report))
            bounds = batch.cu_seqlens.tolist()
            for start, end in pairwise(bounds):
                tokens = batch.tokens_T[start:end].numpy().astype(np.int32).tobytes()
                found[tokens] = by_token[start:end].numpy()
        self.tables.append(table)
        measures = joined(reports)
        self.measures.append(measures)
        self.losses.append(measures["loss"][0])
        self.gradients.append(found)
        with torch.no_grad():
            self.table -= RATE * lr_scale * gradient
        return StepResult(skipped=False, grad_norm=0.0, lr=RATE * lr_scale, metrics=measures)

    def _step_of_critic(self, micro_batches: Sequence[MicroBatch], loss_fn: LossFn) -> StepResult:
        values, gradient = self.values.detach().clone(), torch.zeros_like(self.values)
        reports, found = [], {}
        for batch in micro_batches:
            values_T = self.values[batch.tokens_T]
            loss, report = loss_fn(batch, Outputs.of_critic(values_T))
            by_token, by_value = torch.autograd.grad(loss, [values_T, self.values])
            gradient += by_value
            reports.append(measured(report))
            for start, end in pairwise(batch.cu_seqlens.tolist()):
                tokens = batch.tokens_T[start:end].numpy().astype(np.int32).tobytes()
                found[tokens] = by_token[start:end].numpy()
        measures = joined(reports)
        self.of_critic.append((values, measures, found))
        with torch.no_grad():
            self.values -= VALUE_RATE * gradient
        return StepResult(skipped=False, grad_norm=0.0, lr=VALUE_RATE, metrics=measures)

    def valued(self, step: int, tokens: npt.NDArray[np.int32]) -> papers.Array:
        """The critic's value under each label, before that step; 0 without a critic."""
        if not self.of_critic:
            return np.zeros(len(tokens))
        return self.of_critic[step][0].numpy().astype(np.float64)[tokens]

    def scores(self, table: torch.Tensor, tokens: npt.NDArray[np.int32]) -> papers.Array:
        """Log-probability of each label; 0 at the last position, which has none."""
        logits = table.numpy().astype(np.float64)[tokens[:-1]]
        logits -= logits.max(-1, keepdims=True)
        logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        return np.append(logprobs[np.arange(len(tokens) - 1), tokens[1:]], 0.0)


def sequences(batch: Batch, backend: Watched, step: int) -> list[tuple[bytes, papers.Seq]]:
    """All segments of a step, with the tokens that name them."""
    groups = batch.header.groups[3 * step : 3 * step + 3]
    found = []
    for group in groups:
        for row in group.trajectories:
            data = batch.rows[row.payload.offset]
            sampled = np.append(data.sampled_L[1:], False)
            versions = np.append(data.versions_L[1:], -1)
            seq = papers.Seq(
                name=group.group,
                group=list(group.rewards),
                index=group.episodes.index(row.episode),
                episode_len=sum(
                    each.meta.num_sampled
                    for each in group.trajectories
                    if each.episode == row.episode
                ),
                sampled=sampled,
                mask=sampled & (LEASE - 1 - versions <= BOUND),
                mu=np.append(data.logprobs_L[1:], 0.0).astype(np.float64),
                prox=backend.scores(backend.tables[0], data.tokens_L),
                reference=backend.scores(backend._reference, data.tokens_L),
                teacher=backend.scores(backend._reference.T, data.tokens_L),
                now=backend.scores(backend.tables[step], data.tokens_L),
                segment=row.meta.segment,
                values=backend.valued(0, data.tokens_L),
                values_now=backend.valued(step, data.tokens_L),
            )
            found.append((data.tokens_L.tobytes(), seq))
    return found


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(
    ("name", "flags"),
    [
        *((name, flags) for name, cases in CASES.items() for flags in cases),
        *((name, flags) for name in ("grpo", "gspo") for flags in CORRECTIONS),
        *((name, flags) for name in ("grpo", "opob") for flags in DISTILLED),
    ],
    ids=lambda value: value if isinstance(value, str) else shown(value),
)
def test_value_and_gradient_are_those_of_the_papers(
    name: str, flags: dict[str, Any], seed: int
) -> None:
    cfg = RunConfig(
        advantage_estimator=name,
        num_steps_per_rollout=2,
        max_tokens_per_gpu=160,
        max_staleness=BOUND,
        **flags,
    )
    batch, backend = Batch(seed), Watched(seed)
    train_lease(batch.header, load_algorithm(cfg), backend, lineage(), batch.fetch)

    steps = [sequences(batch, backend, step) for step in range(2)]
    papers.advantages(name, [seq for named in steps for _, seq in named], flags)
    for step, named in enumerate(steps):
        loss, slopes = papers.loss(name, [seq for _, seq in named], flags)
        assert backend.losses[step] == pytest.approx(loss, rel=1e-4, abs=1e-5)
        trained = {tokens: seq.mask.any() for tokens, seq in named}
        assert backend.gradients[step].keys() <= trained.keys()
        for (tokens, _), slope in zip(named, slopes, strict=True):
            found = backend.gradients[step].get(tokens, np.zeros(len(slope)))
            np.testing.assert_allclose(found, slope, rtol=2e-4, atol=1e-7)
    assert any(slope.any() for slope in slopes)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("flags", CASES["ppo"], ids=shown)
def test_a_critics_loss_and_gradient_are_those_of_the_papers(
    flags: dict[str, Any], seed: int
) -> None:
    cfg = RunConfig(
        advantage_estimator="ppo",
        num_steps_per_rollout=2,
        max_tokens_per_gpu=160,
        max_staleness=BOUND,
        **flags,
    )
    batch, backend = Batch(seed), Watched(seed)
    train_lease(batch.header, load_algorithm(cfg), backend, lineage(), batch.fetch)
    steps = [sequences(batch, backend, step) for step in range(2)]
    seqs = [seq for named in steps for _, seq in named]
    papers.advantages("ppo", seqs, flags)
    clipped = 0.0
    for step, named in enumerate(steps):
        loss, slopes, share = papers.value_loss([seq for _, seq in named], flags)
        _, measures, gradients = backend.of_critic[step]
        assert measures["value_loss"][0] == pytest.approx(loss, rel=1e-4, abs=1e-5)
        total, count = measures["value_clipfrac"]
        assert total / count == pytest.approx(share)
        clipped += share
        total, count = measures["explained_variance"]
        assert total / count == pytest.approx(papers.explained_variance(seqs), rel=1e-4, abs=1e-5)
        assert len(gradients) == len(named)  # an episode of no advantage teaches the critic too
        for (tokens, _), slope in zip(named, slopes, strict=True):
            np.testing.assert_allclose(gradients[tokens], slope, rtol=2e-4, atol=1e-7)
    assert 0 < clipped < 2


def test_the_first_iterations_train_the_critic_alone() -> None:
    flags: dict[str, Any] = {"advantage_estimator": "ppo", "max_staleness": BOUND}
    for num, is_moved in ((LEASE, False), (LEASE - 1, True)):
        cfg = RunConfig(num_critic_only_steps=num, **flags)
        batch, backend = Batch(1), Watched(1)
        before = backend.table.detach().clone(), backend.values.detach().clone()
        result = train_lease(batch.header, load_algorithm(cfg), backend, lineage(), batch.fetch)
        assert torch.equal(backend.table, before[0]) != is_moved
        assert not torch.equal(backend.values, before[1])
        assert not result.skipped


def test_a_teacher_alone_teaches_and_its_distance_is_measured() -> None:
    """Without rewards, from groups of one."""
    cfg = RunConfig(use_opd=True, num_steps_per_rollout=2, max_staleness=BOUND)
    batch, backend = Batch(1), Watched(1)
    flat = [replace(group, rewards=[0.0] * len(group.rewards)) for group in batch.header.groups]
    batch.header = replace(batch.header, groups=flat)
    algorithm = load_algorithm(cfg)
    assert algorithm.needs.min_group == 1
    assert algorithm.teaches(0.0)
    train_lease(batch.header, algorithm, backend, lineage(), batch.fetch)
    assert any(slope.any() for slope in backend.gradients[0].values())
    seqs = [seq for step in range(2) for _, seq in sequences(batch, backend, step)]
    gaps = np.concatenate([(seq.prox - seq.teacher)[seq.mask] for seq in seqs])
    total, count = joined(backend.measures)["opd_reverse_kl"]
    assert count == len(gaps)
    assert total / count == pytest.approx(gaps.mean(), rel=1e-4)


def test_slimes_flag_of_sequence_masking_is_a_trust_region() -> None:
    given = read_flags(["--use-opsm", "--opsm-delta", "0.5"])
    assert not given.refused
    (region,) = load_algorithm(RunConfig(**given.values)).regions
    (same,) = load_algorithm(RunConfig(trust_region=["opsm:0.5"])).regions
    assert (type(region), region.given) == (type(same), same.given)
    with pytest.raises(ConfigError, match="named twice"):
        load_algorithm(RunConfig(use_opsm=True, trust_region=["opsm"]))


@pytest.mark.parametrize("flags", CORRECTIONS, ids=shown)
def test_a_correction_of_these_leases_reaches_some_tokens_and_not_all(
    flags: dict[str, Any],
) -> None:
    shares = []
    for seed in (1, 2, 3):
        cfg = RunConfig(num_steps_per_rollout=2, max_staleness=BOUND, **flags)
        batch, backend = Batch(seed), Watched(seed)
        train_lease(batch.header, load_algorithm(cfg), backend, lineage(), batch.fetch)
        name = "dropped" if cfg.trust_region else "tis_clipfrac"
        found, num = joined(backend.measures)[name]
        shares.append(found / num)
    assert 0.01 < sum(shares) / 3 < 0.95


def test_every_estimator_and_trust_region_that_ships_has_its_papers() -> None:
    assert papers.ADVANTAGES.keys() == CASES.keys() == ALGORITHMS.places.keys()
    assert {*papers.REGIONS, "m2po"} == TRUST_REGIONS.places.keys()
    named = [text for flags in CORRECTIONS for text in flags.get("trust_region", [])]
    assert {text.split(":")[0] for text in named} == TRUST_REGIONS.places.keys()
    # Every level of the weight with every mode: one of them is the default, with each estimator.
    weights = [
        (each.get("tis_level", "token"), each.get("tis_mode", "truncate")) for each in CORRECTIONS
    ]
    assert set(weights) == {*product(get_args(Level), get_args(Outside))}
