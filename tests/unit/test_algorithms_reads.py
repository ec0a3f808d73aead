"""An estimator of agentrl's reads the flags that it declares; any other is refused with it."""

from collections.abc import Iterator
from typing import Any

import pytest

from agentrl.algorithms.load import check_algorithm, load_algorithm
from agentrl.config.flags.objective import ObjectiveFlags
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.learner.iteration import train_lease
from agentrl.learner.unread_terms import Noting, asked
from agentrl.shipped import ALGORITHMS
from tests.parity.golden import Batch, TableBackend, lineage

pytestmark = pytest.mark.slow

#: Flags that others must be beside to be read.
BESIDE: tuple[dict[str, Any], ...] = (
    {},
    {"use_kl_loss": True, "kl_loss_coef": 0.1},
    {"normalize_advantages": True, "kl_coef": 0.1},
    {"use_opsm": True},
    {"use_opd": True},
    {"overlong_buffer_length": 10, "overlong_max_length": 30, "overlong_filter": True},
)
#: By which an algorithm is chosen, or which are of another kind of run.
ELSE = {
    *("loss_type", "custom_loss_function_path", "advantage_estimator", "algorithm_args"),
    "prompt_loss_weight",
}
TERMS = ObjectiveFlags.__annotations__.keys() - ELSE
#: A value other than the default.
VALUES: dict[str, Any] = {"eps_clip_c": 3.0}


def observed(name: str) -> set[str]:
    found: set[str] = set()
    for flags in BESIDE:
        cfg = Noting.of(RunConfig(advantage_estimator=name, num_steps_per_rollout=2, **flags))
        batch = Batch(1)
        train_lease(batch.header, load_algorithm(cfg), TableBackend(1), lineage(), batch.fetch)
        found |= asked()
    return found & TERMS


@pytest.mark.parametrize("name", ALGORITHMS.places)
def test_an_estimator_reads_what_it_declares_and_nothing_else(name: str) -> None:
    assert observed(name) == load_algorithm(RunConfig(advantage_estimator=name)).reads


def unread() -> Iterator[tuple[str, str]]:
    for name in ALGORITHMS.places:
        reads = load_algorithm(RunConfig(advantage_estimator=name)).reads
        yield from ((name, flag) for flag in sorted(TERMS - reads))


@pytest.mark.parametrize(("name", "flag"), list(unread()))
def test_a_flag_that_it_does_not_read_is_refused_unless_it_changes_nothing(
    name: str, flag: str
) -> None:
    default = getattr(RunConfig(), flag)
    value = VALUES.get(flag, not default if isinstance(default, bool) else 0.5)
    usual: dict[str, Any] = {
        "advantage_estimator": name,
        "n_samples_per_prompt": 4,
        **dict.fromkeys(load_algorithm(RunConfig(advantage_estimator=name)).requires, True),
    }
    cfg = RunConfig(**usual, **{flag: value})
    with pytest.raises(ConfigError, match=f"--x: --advantage-estimator {name} does not read this"):
        check_algorithm(cfg, {flag: "--x"})
    check_algorithm(RunConfig(**usual), {flag: "--x"})


def test_what_an_estimator_needs_is_asked_for() -> None:
    cfg = RunConfig(advantage_estimator="reinforce_plus_plus", n_samples_per_prompt=1)
    with pytest.raises(ConfigError, match="reinforce_plus_plus needs --normalize-advantages; add"):
        check_algorithm(cfg)


@pytest.mark.parametrize("name", ["gspo", "cispo", "rloo", "reinforce_plus_plus_baseline"])
def test_a_group_of_one_is_refused_where_episodes_are_compared(name: str) -> None:
    cfg = RunConfig(advantage_estimator=name, normalize_advantages=True, n_samples_per_prompt=1)
    with pytest.raises(ConfigError, match=f"--n-samples-per-prompt 1 with .* {name}: it compares"):
        check_algorithm(cfg)
