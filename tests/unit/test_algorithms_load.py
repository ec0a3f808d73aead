"""The flags name an algorithm: ours or the user's, with its arguments, or it is refused."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentrl.algorithms.base import Algorithm, credits_of
from agentrl.algorithms.load import check_algorithm, load_algorithm
from agentrl.algorithms.rows import Credit
from agentrl.cli import train
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError, DataError
from agentrl.types import EpisodeId, GroupRows
from tests.estimators import group_of

RLOO = '''
"""Leave-one-out: Kool et al. 2019; Ahmadian et al. 2024, https://arxiv.org/abs/2402.14740."""

import msgspec

from agentrl.algorithms.base import Algorithm


class Rloo(Algorithm):
    class Args(msgspec.Struct):
        scale: float = 1.0

    def __init__(self, cfg, args):
        super().__init__(cfg, args)
        self.needs = msgspec.structs.replace(self.needs, min_group=2)

    def values(self, rewards):
        others = len(rewards) - 1
        total = sum(rewards)
        return [self.args.scale * (r - (total - r) / others) for r in rewards]
'''


def ours(folder: Path, **flags: Any) -> RunConfig:
    (folder / "rloo.py").write_text(RLOO)
    return RunConfig(advantage_estimator=str(folder / "rloo.py"), n_samples_per_prompt=4, **flags)


def test_an_estimator_is_one_file_that_the_flag_names(tmp_path: Path) -> None:
    algorithm = load_algorithm(ours(tmp_path, algorithm_args={"scale": 2.0}))
    found = credits_of(algorithm, group_of([0.0, 0.0, 3.0]))
    assert [credit.value for credit in found] == [-3.0, -3.0, 6.0]
    assert credits_of(algorithm, group_of([1.0, 1.0])) == [Credit(0.0, skip=True)] * 2


def test_a_custom_loss_takes_the_credit_of_any_estimator_and_skips_nothing(tmp_path: Path) -> None:
    (tmp_path / "loss.py").write_text("def mine(batch, logprobs_T, entropy_T): ...\n")
    cfg = ours(
        tmp_path, loss_type="custom_loss", custom_loss_function_path=str(tmp_path / "loss.py")
    )
    algorithm = load_algorithm(cfg)
    assert (algorithm.name, algorithm.needs.all_labels) == ("Rloo", True)
    assert credits_of(algorithm, group_of([1.0, 1.0])) == [Credit(0.0)] * 2


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"megatron": {"context_parallel_size": 2}}, "reads logits, and --context-parallel-size 2"),
        ({"true_on_policy_mode": True}, "reads logits, and --true-on-policy-mode computes"),
        (
            {"env_mix": {"parts": [{"name": "a", "prompt_data": "a.jsonl", "temperature": 0.7}]}},
            "reads logits and would divide them by one temperature",
        ),
    ],
)
def test_a_loss_that_reads_logits_is_refused_where_there_are_none(
    flags: dict[str, Any], said: str, tmp_path: Path
) -> None:
    (tmp_path / "loss.py").write_text("def mine(args, batch, logits, sum_of_sample_mean): ...\n")
    place = str(tmp_path / "loss.py")
    cfg = ours(tmp_path, loss_type="custom_loss", custom_loss_function_path=place)
    assert load_algorithm(cfg).needs.logits
    check_algorithm(cfg)
    with pytest.raises(ConfigError, match=f"^--custom-loss-function-path {place} {said}"):
        check_algorithm(msgspec.structs.replace(cfg, **flags))


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"scal": 2.0}, "Rloo takes no 'scal'; did you mean 'scale'"),
        ({"scale": "much"}, "for Rloo: Expected `float`, got `str`"),
    ],
)
def test_arguments_that_the_class_does_not_take_are_refused(
    args: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        load_algorithm(ours(tmp_path, algorithm_args=args))


def test_grpo_takes_no_arguments() -> None:
    with pytest.raises(ConfigError, match="Grpo takes no 'scale'; known: none"):
        load_algorithm(RunConfig(algorithm_args={"scale": 1}))


def test_a_name_that_nobody_announces_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="there is no algorithm 'grop'; did you mean 'grpo'"):
        load_algorithm(RunConfig(advantage_estimator="grop"))


def test_a_group_that_is_too_small_teaches_nothing_and_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--n-samples-per-prompt 1 .* fewer than 2"):
        check_algorithm(RunConfig(n_samples_per_prompt=1))
    check_algorithm(RunConfig(n_samples_per_prompt=1, disable_rewards_normalization=True))


@pytest.mark.parametrize("sizes", [{"n_samples_per_prompt": 1}, {"min_group_size": 1}])
def test_what_else_teaches_in_a_small_group_is_not_denied(sizes: dict[str, int]) -> None:
    """The KL to the reference does, and so does an entropy bonus."""
    config = msgspec.convert({"use_kl_loss": True, "kl_loss_coef": 0.1, **sizes}, RunConfig)
    with pytest.raises(ConfigError, match="rewards teach nothing in") as refused:
        check_algorithm(config)
    assert "learn nothing" not in str(refused.value)


def test_the_command_line_refuses_before_anything_starts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of the default job too, into which nothing else is looked."""
    assert train.main(["--n-samples-per-prompt", "1"], "train_async") == 2
    said = capsys.readouterr().err
    assert "rewards teach nothing in one of fewer than 2" in said
    assert "in slime too, a reward less the mean of its group of one is 0" in said


@pytest.mark.parametrize(
    "metric",
    [
        'Metric("train/entropy", "nats", "ours already", "sum")',
        'Metric("train/mine", "nats", "without a reduction")',
        'Metric("rollout/mine", "nats", "of another family", "sum")',
    ],
)
def test_a_metric_that_is_taken_or_has_no_reduction_is_refused(metric: str, tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(
        "from agentrl.algorithms.base import Algorithm\n"
        "from agentrl.telemetry.metrics import Metric\n"
        f"class Odd(Algorithm):\n    metrics = ({metric},)\n"
    )
    with pytest.raises(ConfigError, match=r"Odd\.metrics: .* wants a name of its own"):
        load_algorithm(RunConfig(advantage_estimator=str(tmp_path / "odd.py")))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ("[0.0]", "returned 1 credits for the 2 episodes of group g"),
        ("[float('nan')] * 2", r"returned \[nan, nan\] .* one is nan; a credit must be"),
        ("[1e39] * 2", r"returned \[1e\+39, 1e\+39\] .* one is 1e\+39; a credit must be"),
    ],
)
def test_credit_that_is_none_is_refused(values: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(
        "from agentrl.algorithms.base import Algorithm\n"
        f"class Odd(Algorithm):\n    def values(self, rewards):\n        return {values}\n"
    )
    algorithm = load_algorithm(RunConfig(advantage_estimator=str(tmp_path / "odd.py")))
    with pytest.raises(DataError, match=said):
        credits_of(algorithm, group_of([0.0, 1.0]))


def test_a_loss_that_a_subclass_wrote_computes_every_episode_unless_it_says_otherwise() -> None:
    class Own(Algorithm):
        def loss(self, model: str, batch: Any, out: Any) -> Any:
            raise NotImplementedError

    class Vanishing(Own):
        loss_vanishes = True

    group = GroupRows("g", 1, "t", [EpisodeId("g", 0)], [0.0], [{}], [])
    for cls, skips in ((Algorithm, True), (Own, False), (Vanishing, True)):
        algorithm = cls(RunConfig(), None)
        assert [credit.skip for credit in algorithm.credit(group)] == [skips]
        assert algorithm.teaches(0.0) is not skips


VALUED = """
import msgspec

from agentrl.algorithms.ppo import Ppo


class Valued(Ppo):
    pass
"""


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"num_critic_only_steps": 9, "num_rollout": 8}, "9 is more than the --num-rollout 8"),
        ({"custom_advantage_function_path": "FILE:given"}, "it gives advantages and no returns"),
        ({"min_lr": 1e-7, "critic_lr": 1e-8}, "--min-lr 1e-07 is above --critic-lr 1e-08"),
    ],
)
def test_a_critic_of_the_users_is_held_to_the_same_rules(
    flags: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "valued.py"
    path.write_text(VALUED + "\n\ndef given(rows):\n    pass\n")
    flags = {k: v.replace("FILE", str(path)) if isinstance(v, str) else v for k, v in flags.items()}
    with pytest.raises(ConfigError, match=said):
        check_algorithm(RunConfig(advantage_estimator=f"{path}:Valued", **flags))
    check_algorithm(RunConfig(advantage_estimator=f"{path}:Valued"))
