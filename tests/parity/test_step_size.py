"""`--scale-lr-by-ess` against VCPO's formula: an iteration sets the reference, others follow."""

from typing import Any

import pytest

from agentrl.algorithms.load import load_algorithm
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.learner.iteration import train_lease
from tests.parity import papers
from tests.parity.golden import RATE, Batch, lineage
from tests.parity.test_estimators import BOUND, Watched, sequences

VCPO: dict[str, Any] = {
    "advantage_estimator": "opob",
    "tis_level": "sequence",
    "tis_clip": 8.0,
    "scale_lr_by_ess": True,
}


def config(**flags: Any) -> RunConfig:
    return RunConfig(num_steps_per_rollout=2, max_tokens_per_gpu=160, max_staleness=BOUND, **flags)


def of_papers(batch: Batch, backend: Watched) -> list[papers.Seq]:
    """The segments of an iteration whose groups did not earn alike."""
    named = [each for step in range(2) for each in sequences(batch, backend, step)]
    return [seq for _, seq in named if len(set(seq.group)) > 1]


@pytest.mark.parametrize("flags", [VCPO, {"scale_lr_by_ess": True}], ids=["vcpo", "grpo"])
def test_the_step_is_that_of_the_paper(flags: dict[str, Any]) -> None:
    """The first iteration sets the reference, and every later one is measured by that, also after
    the learner has been another process."""
    algorithm = load_algorithm(config(**flags))
    reference, scales = 0.0, []
    for seed in (7, 1, 6, 4):
        batch, backend = Batch(seed), Watched(seed)
        result = train_lease(batch.header, algorithm, backend, lineage(), batch.fetch)
        seqs = of_papers(batch, backend)
        reference = reference or papers.ess_share(seqs)
        scales.append(papers.step_scale(seqs, reference))
        assert [step.lr / RATE for step in result.steps["policy"]] == pytest.approx(
            [scales[-1]] * 2
        )
        again = load_algorithm(algorithm.cfg)
        again.restore(algorithm.state())
        assert again.state() == algorithm.state() != b""
        algorithm = again
    assert scales[0] == 1.0
    assert min(scales) < 0.9


def test_a_smaller_step_has_the_same_gradient() -> None:
    found = []
    for is_scaled in (False, True):
        algorithm = load_algorithm(config(scale_lr_by_ess=is_scaled))
        if algorithm.step_size is not None:
            algorithm.step_size.reference = 1.0
        batch, backend = Batch(1), Watched(1)
        result = train_lease(batch.header, algorithm, backend, lineage(), batch.fetch)
        moved = backend.tables[1] - backend.tables[0]
        found.append((result.steps["policy"][0].lr, moved, backend.gradients[0]))
    (plain, far, slopes), (scaled, near, same) = found
    assert scaled < 0.8 * plain
    assert near.norm() / far.norm() == pytest.approx(scaled / plain, rel=1e-4)
    assert slopes.keys() == same.keys()
    assert all((slopes[name] == same[name]).all() for name in slopes)


def test_an_iteration_without_a_trained_token_sets_no_reference() -> None:
    algorithm = load_algorithm(config(scale_lr_by_ess=True))
    assert algorithm.lr_scale([], list) == 1.0
    assert algorithm.step_size is not None
    assert algorithm.step_size.reference is None


def test_a_state_of_the_users_would_lose_the_reference(tmp_path: Any) -> None:
    (tmp_path / "mine.py").write_text(
        "from agentrl.algorithms.base import Algorithm\n\n\nclass Mine(Algorithm):\n"
        "    def state(self):\n        return b'1'\n"
    )
    with pytest.raises(ConfigError, match="would not hold the reference"):
        load_algorithm(config(advantage_estimator=f"{tmp_path}/mine.py", scale_lr_by_ess=True))
