"""What is learnt: the loss and its terms.

A loss is the configuration's and not a checkpoint's: a continued run may change all but its kind.
"""

from functools import partial
from typing import Annotated, Any, Literal

from agentrl.bounds import MAX_REWARD
from agentrl.config.facts import (
    FREE,
    LEARNER,
    POLICY,
    STATE,
    TRAINS,
    Count,
    NonNegative,
    OverOne,
    flag,
    noted,
)
from agentrl.config.flags.learner import LearnerFlags
from agentrl.shipped import ALGORITHMS, TRUST_REGIONS

__all__ = ["ObjectiveFlags"]

_flag = partial(flag, group="objective", on_resume=FREE, modes=POLICY, halves=LEARNER)
_loss = partial(_flag, group="policy loss")
_term = partial(_loss, needs="policy_loss")
#: How tokens of older weights are corrected.
_correction = partial(_loss, corrects=True)


class ObjectiveFlags(LearnerFlags, frozen=True, kw_only=True):
    loss_type: Annotated[
        Literal["policy_loss", "sft_loss", "custom_loss"],
        _flag(
            "What is learnt: rewarded episodes (policy_loss), or the demonstrated turns of "
            "--prompt-data (sft_loss: --input-key names a list of chat messages)",
            modes=TRAINS,
            on_resume=STATE,
        ),
    ] = "policy_loss"
    custom_loss_function_path: Annotated[
        str | None,
        _flag(
            "Loss of --loss-type custom_loss, called as fn(micro_batch, logprobs_T, entropy_T), or "
            "with logits as in slime: a name, pkg.module:fn or path/to/file.py[:fn]",
            holds="code",
            needs="custom_loss",
        ),
    ] = None
    prompt_loss_weight: Annotated[
        float,
        _flag(
            "Weight of tokens that the assistant only reads, under --loss-type sft_loss",
            modes=frozenset({"supervised"}),
            ge=0,
            le=1,
        ),
    ] = 0.0
    advantage_estimator: Annotated[
        str,
        _flag(
            f"How rewards become advantages: {ALGORITHMS}, a name that a package brings, or a "
            "class of yours: path/to/file.py[:Class] or pkg.module:Class",
            holds="code",
        ),
    ] = "grpo"
    algorithm_args: Annotated[
        dict[str, Any],
        _flag("Arguments of the class of --advantage-estimator as JSON, which fill its Args"),
    ] = {}
    custom_reward_post_process_path: Annotated[
        str | None,
        _flag(
            "Function that makes the rewards of an iteration into what its episodes earned, in "
            "place of the statistics of their groups, called as fn(groups) -> a list for each "
            "group, or as in slime: a name, pkg.module:fn or path/to/file.py[:fn]",
            holds="code",
        ),
    ] = None
    custom_advantage_function_path: Annotated[
        str | None,
        _flag(
            "Function that gives tokens their advantages in place of the estimator, after the "
            "forward passes, called as fn(rows) -> an array for each row, or as in slime: a name, "
            "pkg.module:fn or path/to/file.py[:fn]",
            holds="code",
        ),
    ] = None
    normalize_advantages: Annotated[
        bool,
        _flag(
            "Bring the advantages of all trained tokens of an iteration to mean 0 and variance 1, "
            "over all ranks (reinforce_plus_plus and its baseline need it)"
        ),
    ] = False
    kl_coef: Annotated[
        float,
        _flag(
            "Weight of the KL to the reference model in the reward of each token; the reference "
            "is loaded for it. This KL is always log pi_prox - log pi_ref (k1), whatever "
            "--kl-loss-type says: as a reward the other estimators have another gradient",
            ge=0,
        ),
    ] = 0.0
    use_opd: Annotated[
        bool,
        _flag(
            "On-policy distillation: subtract log pi - log pi_teacher of each sampled token, "
            "times --opd-kl-coef, from its advantage, whatever estimates the advantage"
        ),
    ] = False
    opd_kl_coef: Annotated[
        float, _flag("Weight of the distance to the teacher", needs="opd", ge=0)
    ] = 1.0
    gamma: Annotated[float, _flag("Discount of what later tokens earn", ge=0, le=1)] = 1.0
    lambd: Annotated[
        float,
        _flag(
            "Weight of later errors of the critic in an advantage (GAE's lambda): 1, returns less "
            "the value; 0, only what the next token changed",
            ge=0,
            le=1,
        ),
    ] = 1.0
    value_clip: Annotated[
        float,
        _flag(
            "How far a value of the critic may move from the one at the start of the iteration",
            ge=0,
        ),
    ] = 0.2
    num_critic_only_steps: Annotated[
        int, _flag("First iterations of a run in which the critic alone is trained", ge=0)
    ] = 0
    disable_grpo_std_normalization: Annotated[
        bool,
        _flag(
            "Do not divide by the group's standard deviation (Dr.GRPO, with --loss-length)",
            needs="group_statistics",
        ),
    ] = False
    disable_rewards_normalization: Annotated[
        bool,
        _flag("Use rewards as advantages, without group statistics", needs="group_rewards"),
    ] = False
    calculate_per_token_loss: Annotated[
        bool,
        _flag(
            "Take the loss as the mean over all sampled tokens (default: the mean over episodes "
            "of each episode's mean)",
            modes=TRAINS,
            needs="counted_tokens",
        ),
    ] = False
    loss_length: Annotated[
        Count | None,
        _flag(
            "Divide the loss of each episode by this number instead of by the episode's length, "
            "so that tokens of short and of long episodes weigh alike (Dr.GRPO; verl: "
            "loss_scale_factor). As a rule it is the greatest number of tokens that an episode "
            "may sample (default: off)"
        ),
    ] = None
    custom_pg_loss_reducer_function_path: Annotated[
        str | None,
        _flag(
            "Function that says how the policy-gradient losses of a trajectory's tokens are added "
            "up, called as in slime, fn(total_lengths, response_lengths, loss_masks, "
            "calculate_per_token_loss) -> a function of the losses: a name, pkg.module:fn or "
            "path/to/file.py[:fn]",
            holds="code",
            needs="reduced_tokens",
        ),
    ] = None
    reward_level: Annotated[
        Literal["episode", "turn", "role"],
        _flag(
            "What a token is credited with: the reward of its episode (episode); the rewards of "
            "its turn and of the turns after it, as the Env gave them with each Step (turn); or "
            "the reward of its role, as the rollout gave it, compared with rewards of the same "
            "role alone (role)",
            needs="group_rewards",
            halves=frozenset(),  # workers look at the rewards of roles too
            on_resume=noted("open groups whose roles have rewards of their own need role"),
        ),
    ] = "episode"
    overlong_max_length: Annotated[
        Count | None,
        _flag(
            "Sampled tokens of an episode, over all its turns, from which the penalty of "
            "--overlong-buffer-length is full (TRL: max_completion_len)",
            needs="overlong_penalty",
        ),
    ] = None
    overlong_buffer_length: Annotated[
        Count | None,
        _flag(
            "Take more and more from the rewards of episodes that sample the last so many tokens "
            "before --overlong-max-length (DAPO; verl: overlong_buffer.len; default: off)"
        ),
    ] = None
    overlong_penalty_factor: Annotated[
        float,
        _flag(
            "What the longest episodes lose of their reward",
            needs="overlong_penalty",
            ge=0,
            le=MAX_REWARD,
        ),
    ] = 1.0
    overlong_filter: Annotated[
        bool,
        _flag(
            "Give no gradient to episodes that a limit on tokens ended (stop reasons "
            "response_limit and context_limit); they are counted, and their rewards stay in the "
            "statistics of their groups (TRL: mask_truncated_completions)"
        ),
    ] = False
    eps_clip: Annotated[float, _loss("Lower clip range of the ratio", ge=0)] = 0.2
    eps_clip_high: Annotated[
        NonNegative | None, _loss("Upper clip range (default: --eps-clip)")
    ] = None
    eps_clip_c: Annotated[
        OverOne | None, _loss("Dual-clip constant for negative advantages (default: off)")
    ] = None
    use_rollout_logprobs: Annotated[
        bool,
        _term(
            "Take the ratio to the engine's log-probabilities, mu, in place of those of the "
            "learner at the start of the iteration: then there is no weight pi_prox / mu, and no "
            "forward pass for it",
            corrects=True,
        ),
    ] = False
    use_tis: Annotated[
        bool, _correction("Weight tokens by pi_prox / mu within its bounds", needs="prox_ratio")
    ] = True
    tis_mode: Annotated[
        Literal["truncate", "mask"],
        _correction(
            "What a pi_prox / mu beyond its bounds counts as: the nearer bound (truncate), or 0 "
            "(mask; IcePop)",
            needs="tis",
        ),
    ] = "truncate"
    tis_level: Annotated[
        Literal["token", "sequence", "geometric"],
        _correction(
            "What pi_prox / mu is measured on: a token, its whole sequence, or the geometric mean "
            "of its sequence",
            needs="tis",
        ),
    ] = "token"
    tis_clip: Annotated[float, _correction("Upper bound of pi_prox / mu", needs="tis", gt=0)] = 2.0
    tis_clip_low: Annotated[
        float, _correction("Lower bound of pi_prox / mu", needs="tis", ge=0)
    ] = 0.0
    custom_tis_function_path: Annotated[
        str | None,
        _correction(
            "Function that weighs trained tokens in place of --tis-mode, --tis-level and their "
            "bounds, called as fn(trained) -> weights, or as in slime: a name, pkg.module:fn or "
            "path/to/file.py[:fn]",
            holds="code",
            needs="tis",
        ),
    ] = None
    trust_region: Annotated[
        list[str],
        _term(
            "Drop tokens whose policy moved too far from the one that sampled them: "
            f"{TRUST_REGIONS}, each perhaps with its bounds (dppo:0.2, token:0.5:2); what all keep "
            "is kept (default: none; negative where tokens may be 8 iterations old)",
            collects=1,
            corrects=True,
        ),
    ] = []
    use_opsm: Annotated[
        bool,
        _term("Drop bad sequences that the policy has left: --trust-region opsm", corrects=True),
    ] = False
    opsm_delta: Annotated[
        float, _correction("Bound of --use-opsm, in nats for each token", needs="opsm", gt=0)
    ] = 1e-4
    scale_lr_by_ess: Annotated[
        bool,
        _correction(
            "Take smaller steps on old trajectories: multiply the learning rate by the root of the "
            "effective sample share of pi_prox / mu over that of the first iteration, at most by 1 "
            "(VCPO)",
            needs="prox_ratio",
        ),
    ] = False
    entropy_coef: Annotated[float, _loss("Weight of the entropy bonus")] = 0.0
    use_kl_loss: Annotated[
        bool,
        _loss(
            "Measure the KL to the reference model, which is loaded for it, and add it to the loss "
            "as far as --kl-loss-coef says"
        ),
    ] = False
    kl_loss_coef: Annotated[float, _loss("Weight of the KL in the loss", needs="kl_loss", ge=0)] = (
        0.0
    )
    kl_loss_type: Annotated[
        Literal["k1", "k2", "k3", "low_var_kl"],
        _loss("Estimator of the KL", needs="kl_loss", was="k1"),
    ] = "low_var_kl"
    use_unbiased_kl: Annotated[
        bool,
        _loss(
            "Weight the KL of each token by pi / mu, and let the gradient go through the weight: "
            "then value and gradient are those of the KL also on tokens that another policy "
            "sampled",
            needs="kl_loss",
        ),
    ] = False
