"""What an algorithm is: how rewards become a gradient, and what it needs of a run for that.

    begin(header)             once for each lease: the one place where state follows from rewards
    num_targets, credit       from the lease header, in float64, equal on every rank
    mask, advantages, keep    from the rows of this replica, after the forward passes
    lr_scale                  the same, for the steps over them
    objective, loss           from one micro-batch and what the model made of it
    state, restore            what must survive: in every checkpoint of the learner

`Algorithm` has a default for each, the policy gradient of `policy_loss`: an estimator overrides
`values`, or `objective`. Numpy alone is imported here; torch comes with the first loss. So an
algorithm can be asked what it needs by programs that train nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import numpy as np
import numpy.typing as npt

from agentrl.algorithms.correction import load_correction
from agentrl.algorithms.normalization import Total, normalize
from agentrl.algorithms.overlong import shaped, unfiltered
from agentrl.algorithms.penalties import kl_penalty, teacher_column
from agentrl.algorithms.reducer import load_reducer
from agentrl.algorithms.regions.base import Region
from agentrl.algorithms.regions.load import load_regions
from agentrl.algorithms.role_rewards import role_credits
from agentrl.algorithms.rows import TAKEN, Credit, MicroBatch, Outputs, Row, Trained
from agentrl.algorithms.step_size import StepSize
from agentrl.bounds import credit_defect, reward_defect
from agentrl.columns import TEACHER_LOGPROBS, Column
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError, DataError
from agentrl.telemetry.metrics import Metric
from agentrl.types import GroupRows, LeaseHeader, TrajectoryMeta

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["PASSES", "TERMS", "Algorithm", "Needs", "NoArgs", "Total", "credits_of"]

#: Flags of the objective that credit, plan, default advantages and default loss read, but for those
#: of an `objective`.
TERMS = frozenset(
    {"calculate_per_token_loss", "loss_length", "normalize_advantages", "entropy_coef"}
    | {"eps_clip", "eps_clip_high", "use_rollout_logprobs"}
    | {"use_tis", "tis_mode", "tis_level", "tis_clip", "tis_clip_low", "custom_tis_function_path"}
    | {"trust_region", "use_opsm", "opsm_delta"}
    | {"use_kl_loss", "kl_loss_coef", "kl_loss_type", "use_unbiased_kl"}
    | {"overlong_max_length", "overlong_buffer_length", "overlong_penalty_factor"}
    | {"overlong_filter", "use_opd", "opd_kl_coef", "scale_lr_by_ess"}
    | {"custom_reward_post_process_path", "custom_advantage_function_path"}
    | {"custom_pg_loss_reducer_function_path", "reward_level"}
)

#: Columns that forward passes make, and the model that each is of.
PASSES = {"prox": "policy", "reference": "reference", "teacher": "teacher", "values": "critic"}


class Needs(msgspec.Struct, frozen=True):
    """What an algorithm needs of a run.

    min_group: rewards of fewer episodes in a group teach nothing. min_group_advice: what else one
    may do than play more, from the word "or" on. engines: episodes are played; without,
    dialogues are shown. passes: columns that a forward pass over the rows makes before the first
    step: `prox`, the policy at the start of the iteration, frozen models: `reference`, the
    initial weights, and `teacher`, whose the policy is to become like; and `values`, of a critic
    that is trained beside the policy (`trains`).
    later_prox: the later steps have `prox` anyway, since the loss takes its ratio to it.
    all_labels: the loss reads labels that nobody sampled too. logits: it reads those of a
    micro-batch, which then exist all together. columns: optional ones of the
    trajectories, which rows and micro-batches then have by name. whole_episodes: `advantages` is
    given all trajectories of an episode at once, or, where the payload of one is damaged, none.
    """

    min_group: int = 1
    min_group_advice: str = ""
    engines: bool = True
    passes: frozenset[str] = frozenset()
    later_prox: bool = True
    all_labels: bool = False
    logits: bool = False
    columns: tuple[Column, ...] = ()
    whole_episodes: bool = False

    def __post_init__(self) -> None:
        if unknown := self.passes - PASSES.keys():
            raise ConfigError(
                f"there is no pass {', '.join(sorted(unknown))}: {', '.join(PASSES)} are there"
            )
        if taken := [column.name for column in self.columns if column.name in TAKEN]:
            raise ConfigError(f"rows have {', '.join(taken)} already: name the column otherwise")

    @property
    def models(self) -> frozenset[str]:
        """Models beside the policy."""
        return frozenset(PASSES[name] for name in self.passes) - {"policy"}


class NoArgs(msgspec.Struct, frozen=True):
    """Of an algorithm that takes no `--algorithm-args`."""


class Algorithm:
    """A policy gradient whose advantages are the rewards. `Args`: a msgspec.Struct that
    `--algorithm-args` fills. `metrics`: what its loss reports beside those of `policy_loss`.
    `reads`: the flags of the objective that one of agentrl's own reads; any other is refused. Of a
    class of the user's that is observed (`agentrl.learner.algorithm_trial`). `deviations`: where it
    differs from its papers, for docs/objectives.md. `requires`: flags that have to be set so.
    `reward_levels`: those of `--reward-level` that its `credit` knows; one that a class defines
    knows `episode` alone, unless that says more."""

    Args: ClassVar[type[msgspec.Struct]] = NoArgs
    metrics: ClassVar[tuple[Metric, ...]] = ()
    reads: ClassVar[frozenset[str]] = frozenset()
    deviations: ClassVar[str] = ""
    requires: ClassVar[frozenset[str]] = frozenset()
    reward_levels: ClassVar[frozenset[str]] = frozenset({"episode", "role"})
    #: Whether a critic is trained beside the policy; `values` then is one of the passes. A class
    #: that ships says it in a line of its own, which `agentrl.shipped` reads.
    has_critic: ClassVar[bool] = False
    #: Whether --advantage-estimator may name it (`agentrl.shipped` reads that line too).
    is_chosen: ClassVar[bool] = True
    #: Whether an episode of credit 0 has no gradient, and need not be computed. None: as the
    #: flags say for the loss of `policy_loss`, and False where a subclass wrote the loss or the
    #: advantages.
    loss_vanishes: ClassVar[bool | None] = None
    needs: Needs
    regions: tuple[Region, ...] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "credit" in vars(cls) and "reward_levels" not in vars(cls):
            cls.reward_levels = frozenset({"episode"})

    def __init__(self, cfg: RunConfig, args: Any) -> None:
        self.cfg = cfg
        self.args = args
        self.regions = load_regions(cfg)
        self.correction = load_correction(cfg)
        self.reducer = load_reducer(cfg)
        has_ratio = cfg.loss_type == "policy_loss" and not cfg.use_rollout_logprobs
        self.step_size = StepSize() if cfg.scale_lr_by_ess and has_ratio else None
        passes = {"reference"} if cfg.use_kl_loss else set()
        passes |= {"values"} if self.has_critic else set()
        passes |= {"prox"} if self.step_size is not None else set()
        if any(region.of_iteration for region in self.regions):
            passes.add("prox")
        if cfg.use_opd:
            passes |= set() if cfg.has_served_teacher else {"teacher"}
            passes |= set() if cfg.use_rollout_logprobs else {"prox"}
        self.needs = Needs(
            passes=frozenset(passes),
            later_prox=not cfg.use_rollout_logprobs,
            columns=(TEACHER_LOGPROBS,) if cfg.has_served_teacher else (),
        )

    @property
    def name(self) -> str:
        """As messages call it."""
        return type(self).__qualname__

    @property
    def state_name(self) -> str:
        """What its state is kept under: its file, wherever that lies, and its class."""
        file = sys.modules[type(self).__module__].__file__
        return f"{Path(file or '').stem}.{self.name}"

    # ---- from the lease header ----

    def begin(self, header: LeaseHeader) -> None:
        """An iteration over this lease begins. Its rewards are those that `credit` will be asked
        about."""

    def num_targets(self, meta: TrajectoryMeta) -> float:
        """What the tokens of a trajectory count for in the denominator of the loss."""
        return meta.num_sampled

    def credit(self, group: GroupRows) -> Sequence[Credit]:
        """One for each episode of the group. Pure: it is asked more than once."""
        if self.cfg.reward_level == "role":
            skip = not self._has_other_terms
            return [Credit(found, skip) for found in role_credits(group, self.values)]
        return self.credits(self.values(group.rewards))

    def credits(self, values: Sequence[float]) -> list[Credit]:
        """The credits of a group from the value of each episode."""
        return [Credit(value, skip=value == 0 and not self._has_other_terms) for value in values]

    def credits_by_turn(self, values: Sequence[tuple[float, ...]]) -> list[Credit]:
        """The credits of a group from the values of each episode's turns."""
        return [Credit(each, skip=not any(each) and not self._has_other_terms) for each in values]

    @property
    def _has_other_terms(self) -> bool:
        """Whether an episode of advantage 0 may have a gradient."""
        if self.cfg.enable_mtp_training:  # its layers learn from all that was sampled
            return True
        if self.loss_vanishes is not None:
            return not self.loss_vanishes
        if self._is_unknown or self.cfg.normalize_advantages:
            return True
        # At a coefficient of 0 the KL is measured, and over the same episodes as at any other.
        return self.cfg.entropy_coef != 0 or self.cfg.use_opd or bool(self.needs.models)

    @property
    def _is_unknown(self) -> bool:
        """Whether the loss is not the default one, or a class of the user's makes advantages: a
        credit of 0 does not say that there is no gradient."""
        makers = type(self).advantages, type(self).token_advantages
        has_own = any(each.__module__.partition(".")[0] != "agentrl" for each in makers)
        return has_own or type(self).loss is not Algorithm.loss

    def values(self, rewards: Sequence[float]) -> Sequence[float]:
        """The advantage of each episode of a group. Pure."""
        return rewards

    def teaches(self, reward: float) -> bool:
        """Whether something is learnt where every episode earned this."""
        # turns and roles may differ all the same
        if self.cfg.use_opd or self.cfg.reward_level != "episode":
            return True
        num = max(2, self.needs.min_group)
        is_unknown = self.loss_vanishes is None and self._is_unknown
        return is_unknown or any(self.values([reward] * num))

    # ---- from rows ----

    def mask(self, row: Row) -> npt.NDArray[np.bool_]:
        """Labels to train; those that the framework leaves out stay out (invariant I5). A token
        that a served teacher was not asked about teaches nothing: it was played for a run without
        one."""
        found: npt.NDArray[np.bool_] = row.columns["mask"]
        told_L = row.columns.get(TEACHER_LOGPROBS.name)
        return found if told_L is None else found & (told_L != TEACHER_LOGPROBS.fill)

    def advantages(self, rows: Sequence[Row], total: Total) -> None:
        """Give every row the columns that the loss reads, float32; once for each iteration."""
        for row in rows:
            row.columns["advantages"] = self.token_advantages(row)
        self.adjust(rows, total)

    def adjust(self, rows: Sequence[Row], total: Total) -> None:
        """What flags make of any advantages: less the distance to a teacher, then normalized."""
        for row in rows if self.cfg.use_opd else ():
            penalty_L = kl_penalty(self.cfg, row, self.cfg.opd_kl_coef, teacher_column(self.cfg))
            row.columns["advantages"] += penalty_L.astype(np.float32)
        if self.cfg.normalize_advantages:
            normalize(rows, total)

    def keep(self, rows: Sequence[Row], total: Total) -> None:
        """Give every row column `kept` where a trust region judges the whole iteration."""
        judges = [region for region in self.regions if region.of_iteration]
        for row in rows if judges else ():
            row.columns["kept"] = np.ones(len(row.tokens_L), dtype=np.bool_)
        for region in judges:
            for row, kept_L in zip(rows, region.keeps_rows(rows, total), strict=True):
                row.columns["kept"] &= kept_L

    def reduce(self, rows: Sequence[Row]) -> None:
        """Give every row column `pg_weights` where a function of the user's says how its tokens
        are added up; without, `weights` says it."""
        if self.reducer is not None:
            for row, weights_L in zip(rows, self.reducer(self.cfg, rows), strict=True):
                row.columns["pg_weights"] = weights_L * np.float32(row.share)

    def lr_scale(self, rows: Sequence[Row], total: Total) -> float:
        """What the learning rate is multiplied with in the steps over these rows; after
        `advantages`, once for each iteration. The same on every rank."""
        return 1.0 if self.step_size is None else self.step_size.of(rows, total)

    def token_advantages(self, row: Row) -> npt.NDArray[np.float32]:
        """One for each label, from the credit of its episode."""
        return _spread(row, self.name)

    # ---- the loss ----

    def trains(self, iteration: int) -> tuple[str, ...]:
        """The models that this iteration (from 1) steps, `policy` or `critic`. Pure."""
        return ("policy",)

    def loss(self, model: str, batch: MicroBatch, out: Outputs) -> tuple[Tensor, dict[str, Tensor]]:
        """Of `model`, one that `trains` names, divided by its global denominator: column `weights`
        has the reciprocal. What it measured, by metric name without `train/`. Keeps no state."""
        from agentrl.algorithms.policy_loss import policy_loss

        return policy_loss(self.cfg, batch, out, self.objective, self.regions, self.correction)

    def objective(self, trained: Trained) -> tuple[Tensor, Tensor]:
        """What to maximize, for each trained token, and where a clip was active. Called by the
        default `loss`, which adds weights, entropy and KL."""
        from agentrl.algorithms.policy_loss import ppo_objective

        return ppo_objective(self.cfg, trained)

    # ---- state ----

    def state(self) -> bytes:
        """What the next iteration depends on, beside the weights; equal on every rank."""
        return b"" if self.step_size is None else self.step_size.state()

    def restore(self, data: bytes) -> None:
        """Take over what `state` gave, perhaps in another process."""
        if self.step_size is not None:
            self.step_size.restore(data)


def credits_of(algorithm: Algorithm, group: GroupRows) -> list[Credit]:
    """The credit of each episode of a group, by its scored rewards, of which the penalties for
    length are taken here. Raises DataError for a damaged header, a reward that is not within the
    bound, and an algorithm whose answer is none."""
    if len(group.episodes) != len(group.rewards):
        raise DataError(
            f"group {group.group} has {len(group.episodes)} episodes and "
            f"{len(group.rewards)} rewards: the lease header is damaged"
        )
    for reward in group.rewards:
        if found := reward_defect(reward):
            raise DataError(f"group {group.group}: a reward is {found}: check the reward function")
    group = shaped(algorithm.cfg, group)
    credits = list(algorithm.credit(group))
    if len(credits) != len(group.episodes):
        raise DataError(
            f"{algorithm.name}.credit returned {len(credits)} credits for the "
            f"{len(group.episodes)} episodes of group {group.group}"
        )
    for value in (value for credit in credits for value in credit.numbers):
        if found := credit_defect(value):
            raise DataError(
                f"{algorithm.name}.credit returned {[credit.value for credit in credits]} for the "
                f"rewards {group.rewards}: one is {found}"
            )
    return unfiltered(algorithm.cfg, group, credits)


def _spread(row: Row, name: str) -> npt.NDArray[np.float32]:
    """Credit over labels: one number to all, or a turn's to its own."""
    turns_L = row.columns["turns"]
    if not isinstance(row.credit.value, tuple):
        return np.full(len(turns_L), row.credit.value, dtype=np.float32)
    turns_L = np.where(turns_L < 0, -1, turns_L + row.first_turn)
    if (last := int(turns_L.max(initial=-1))) >= len(row.credit.value):
        raise DataError(
            f"{name}.credit gave episode {row.trajectory.episode} {len(row.credit.value)} numbers, "
            f"and it has a turn {last}: one is wanted for each turn"
        )
    by_turn = np.asarray([*row.credit.value, 0.0], dtype=np.float32)  # -1: no turn's
    found: npt.NDArray[np.float32] = by_turn[turns_L]
    return found
