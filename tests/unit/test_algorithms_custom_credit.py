"""Rewards and advantages by functions of the user's: what these may return, and what they see."""

from pathlib import Path
from typing import Any

import pytest

from agentrl.algorithms.load import check_algorithm, load_algorithm, shown_algorithm
from agentrl.config.resolve import parse
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError, HookError
from agentrl.learner.algorithm_trial import try_algorithm
from agentrl.learner.iteration import train_lease
from tests.parity.golden import Batch, TableBackend, lineage

pytestmark = pytest.mark.slow

REWARDS, ADVANTAGES = "custom_reward_post_process_path", "custom_advantage_function_path"
#: The flag, the head of the function, what it returns, and what is said of that.
FAULTS = {
    "rewards: nothing": (REWARDS, "groups", "None", "the rewards are no list of lists of numbers"),
    "rewards: flat": (REWARDS, "groups", "[1.0] * len(groups)", "the rewards are no list of lists"),
    "rewards: too few": (
        REWARDS,
        "groups",
        "[[1.0] for group in groups]",
        r"there are rewards for \[1, .*\] episodes, and the groups have \[\d, ",
    ),
    "rewards: not finite": (
        REWARDS,
        "groups",
        "[[float('nan')] * len(group.episodes) for group in groups]",
        r"the rewards of group g1 are \[nan, .*\], one is nan; a reward must be a finite number",
    ),
    "rewards: beyond float32": (
        REWARDS,
        "groups",
        "[[1e39] * len(group.episodes) for group in groups]",
        r"the rewards of group g1 are \[1e\+39, .*\], one is 1e\+39; a reward must be a finite",
    ),
    "slime's rewards: one list": (
        REWARDS,
        "args, samples",
        "[sample.reward for sample in samples]",
        r"it returned a list; return \(raw_rewards, rewards\)",
    ),
    "slime's rewards: too few": (
        REWARDS,
        "args, samples",
        "([], [])",
        r"its rewards must be a list of \d+ numbers, one for each sample",
    ),
    "advantages: nothing": (
        ADVANTAGES,
        "rows",
        "None",
        r"the advantages are no list of \d+ arrays, one for each row",
    ),
    "advantages: too few": (ADVANTAGES, "rows", "[]", r"the advantages are no list of \d+ arrays"),
    "advantages: of a wrong length": (
        ADVANTAGES,
        "rows",
        "[row.columns['mu'][1:] for row in rows]",
        r"the advantages of episode \S+ have the shape \(\d+,\); a number is wanted for each of",
    ),
    "advantages: no numbers": (
        ADVANTAGES,
        "rows",
        "[[None] * len(row.tokens_L) for row in rows]",
        r"the advantages of episode \S+ .*not finite|the advantages are no numbers",
    ),
    "advantages: not finite": (
        ADVANTAGES,
        "rows",
        "[row.columns['mu'] * float('nan') for row in rows]",
        r"\d+ of the advantages of episode \S+ are not finite",
    ),
    "slime's advantages: none": (
        ADVANTAGES,
        "args, rollout_data",
        "rollout_data['log_probs']",
        r'rollout_data\["advantages"\] is no list of tensors of the lengths \[\d+, ',
    ),
}


def config(folder: Path, flag: str, head: str, answer: str, **flags: Any) -> RunConfig:
    (folder / "mine.py").write_text(f"def mine({head}):\n    return {answer}\n")
    given: dict[str, Any] = {flag: str(folder / "mine.py"), **flags}
    return RunConfig(n_samples_per_prompt=4, **given)


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_no_answer_is_told_with_the_line_of_the_function(
    fault: str, tmp_path: Path
) -> None:
    flag, head, answer, said = FAULTS[fault]
    algorithm = load_algorithm(config(tmp_path, flag, head, answer))
    batch = Batch(1)
    with pytest.raises(HookError, match=rf"({said}).*: mine \(.*mine\.py:1\)"):
        train_lease(batch.header, algorithm, TableBackend(1), lineage(), batch.fetch)


@pytest.mark.parametrize("fault", ["rewards: not finite", "advantages: of a wrong length"])
def test_they_are_tried_before_anything_starts(fault: str, tmp_path: Path) -> None:
    flag, head, answer, said = FAULTS[fault]
    if "g1" in said:
        said = said.replace("g1", r"\d+")
    spelled = f"--{flag.replace('_', '-')}"
    with pytest.raises(ConfigError, match=rf"{spelled} .*mine\.py: .*{said}.*mine\.py:1\)$"):
        try_algorithm(config(tmp_path, flag, head, answer))


@pytest.mark.parametrize("flag", [REWARDS, ADVANTAGES])
@pytest.mark.parametrize("head", ["one, two, three", "*, groups", "args"])
def test_another_signature_is_refused_with_the_one_to_write(
    flag: str, head: str, tmp_path: Path
) -> None:
    call = {REWARDS: "rewards(groups)", ADVANTAGES: "advantages(rows)"}[flag]
    with pytest.raises(ConfigError, match=rf"mine\.py: .*; write `def {call[:-8]}"):
        load_algorithm(config(tmp_path, flag, head, "1"))


@pytest.mark.parametrize(
    "beside",
    [
        ["--disable-rewards-normalization"],
        ["--disable-grpo-std-normalization"],
        ["--reward-level", "turn"],
    ],
)
def test_statistics_of_groups_are_refused_beside_rewards_of_ones_own(beside: list[str]) -> None:
    parse(["--custom-reward-post-process-path", "mine:rewards"], "train_async")
    with pytest.raises(ConfigError, match=f"{beside[0]}: .*--custom-reward-post-process-path"):
        parse(["--custom-reward-post-process-path", "mine:rewards", *beside], "train_async")


def test_a_flag_of_the_estimator_that_is_replaced_is_told(tmp_path: Path) -> None:
    cfg = config(
        tmp_path,
        ADVANTAGES,
        "rows",
        "[row.columns['prox'] for row in rows]",
        advantage_estimator="reinforce_plus_plus",
        normalize_advantages=True,
    )
    said = {name: f"--{name}" for name in ("gamma", "eps_clip", "normalize_advantages")}
    with pytest.raises(ConfigError, match="nothing of it reads --gamma; leave out"):
        try_algorithm(cfg, said)


def test_a_group_of_one_may_be_compared_by_functions_of_ones_own(tmp_path: Path) -> None:
    for flag, head in ((REWARDS, "groups"), (ADVANTAGES, "rows")):
        (tmp_path / flag).mkdir()
        cfg = config(tmp_path / flag, flag, head, "[]")
        check_algorithm(RunConfig(n_samples_per_prompt=1, **{flag: getattr(cfg, flag)}))


def test_a_sample_says_what_it_does_not_know(tmp_path: Path) -> None:
    cfg = config(tmp_path, REWARDS, "args, samples", "[sample.response for sample in samples]")
    batch = Batch(1)
    with pytest.raises(AttributeError, match="a sample has no 'response' here: its trajectories"):
        train_lease(batch.header, load_algorithm(cfg), TableBackend(1), lineage(), batch.fetch)


@pytest.mark.parametrize("flag", [REWARDS, ADVANTAGES])
def test_a_view_does_not_run_them(flag: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("raise RuntimeError('it was run')\n")
    assert shown_algorithm(RunConfig(**{flag: str(tmp_path / "mine.py")})) is None  # type: ignore[arg-type]
    weighed = RunConfig(custom_tis_function_path=str(tmp_path / "mine.py"))
    assert shown_algorithm(weighed) is not None
