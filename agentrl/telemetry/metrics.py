"""Every metric, declared once: name, unit, help; and its reduction, if losses report it.

Names are `family/name`; families are rollout, train, buffer, perf and eval. A `*` stands for one
word between slashes: an age, a fate, an evaluation set. What an Env says of its own metrics is
declared by `explain`, so that dashboards can explain them.
"""

from agentrl.telemetry.registry import Metric, Registry

__all__ = ["REGISTRY", "Metric"]

_DECLARED = (
    # ---- rollout: the groups an iteration consumes ----
    Metric("rollout/reward_mean", "reward", "Mean scored reward of the iteration's episodes"),
    Metric("rollout/reward_std", "reward", "Standard deviation of the scored rewards"),
    Metric(
        "rollout/pass@*",
        "share",
        "Chance that one of so many episodes of a group has reward 1 (--log-passrate)",
    ),
    Metric("rollout/num_groups", "groups", "Groups of the rollout batch"),
    Metric("rollout/num_episodes", "episodes", "Episodes of the rollout batch with outcome done"),
    Metric("rollout/zero_std_group_share", "share", "Share of groups whose rewards are all equal"),
    Metric("rollout/response_length_mean", "tokens", "Mean number of sampled tokens of an episode"),
    Metric("rollout/turns_mean", "turns", "Mean number of turns of an episode"),
    Metric(
        "rollout/role/*/reward_mean",
        "reward",
        "Mean scored reward of a role's conversations, where there are roles",
    ),
    Metric("rollout/part/*/*", "any", "Metrics rollout/* over the groups of one part of a mixture"),
    Metric("rollout/tool_calls", "calls", "Tool calls that ran in an episode"),
    Metric("rollout/tool_errors", "calls", "Tool calls that failed or could not run"),
    Metric(
        "rollout/tool_use", "share", "Share of episodes that tried a tool call, if there are tools"
    ),
    Metric("rollout/segments", "segments", "Trajectories of an episode whose agent owns its loop"),
    Metric("rollout/malformed_calls", "turns", "Turns of an agent whose calls cannot be taken"),
    Metric("rollout/refused_calls", "calls", "Calls of an agent that a spent budget refused"),
    Metric("rollout/ignored_settings", "calls", "Calls of an agent that ask for other sampling"),
    Metric(
        "rollout/policy_error",
        "share",
        "Share of episodes whose agent raised what its author gives a reward (failures, "
        "policy_error)",
    ),
    Metric("rollout/abandoned_calls", "calls", "Calls that an agent did not wait for"),
    Metric("rollout/reward_mismatch", "episodes", "Rewards not found again from the sampled text"),
    Metric("rollout/retractions", "retractions", "Weight pushes that an episode's turns survived"),
    Metric(
        "rollout/resampled_turns",
        "turns",
        "Turns of an episode that were given up at a weight push and sampled again "
        "(--no-partial-rollout)",
    ),
    Metric("rollout/truncated", "share", "Share of episodes that a limit ended, not their task"),
    Metric(
        "rollout/overlong_penalty",
        "reward",
        "Mean of what an episode loses of its scored reward for its length "
        "(--overlong-buffer-length)",
    ),
    Metric(
        "rollout/num_overlong_filtered",
        "episodes",
        "Episodes that get no gradient because a limit on tokens ended them (--overlong-filter)",
    ),
    Metric(
        "rollout/num_filtered_samples",
        "episodes",
        "Episodes that are not trained because the function of --rollout-sample-filter-path, or "
        "of --custom-convert-samples-to-train-data-path, left them out",
    ),
    # ---- train: the optimizer steps of an iteration ----
    Metric("train/loss", "loss", "Objective, mean over the steps", "sum"),
    Metric("train/pg_loss", "loss", "Policy-gradient part of the objective", "sum"),
    Metric("train/kl_loss", "nats", "KL penalty to the reference, before its coefficient", "sum"),
    Metric(
        "train/opd_reverse_kl",
        "nats",
        "Mean log pi - log pi_teacher of a trained token, at the start of the iteration "
        "(--use-opd)",
        "mean",
    ),
    Metric("train/kl_first", "nats", "KL penalty at the first step of the iteration"),
    Metric("train/nll", "nats", "Negative log-likelihood of a demonstrated token", "mean"),
    Metric("train/custom_*", "any", "Figures that a custom loss sums, mean over the steps", "sum"),
    Metric(
        "train/entropy",
        "nats",
        "Policy entropy of a trained token, in groups that have an advantage",
        "mean",
    ),
    Metric(
        "train/mtp_loss",
        "nats",
        "Cross entropy of the tokens that layers of multi-token prediction predict, mean over "
        "tokens and layers, before its factor (--enable-mtp-training)",
        "mean",
    ),
    Metric("train/pg_clipfrac", "share", "Share of trained tokens whose ratio was clipped", "mean"),
    Metric(
        "train/tis_clipfrac",
        "share",
        "Share of trained tokens whose ratio to the engine left its bounds (--tis-clip)",
        "mean",
    ),
    Metric(
        "train/dropped",
        "share",
        "Share of trained tokens that a trust region, or a correction of the user's, dropped",
        "mean",
    ),
    Metric(
        "train/correction/*",
        "any",
        "Figures that --custom-tis-function-path measures, mean over trained tokens",
        "mean",
    ),
    Metric(
        "train/ess",
        "share",
        "Effective sample size of pi / mu of trained tokens; of 8 or more",
        "ess",
    ),
    Metric(
        "train/ess/*", "share", "Effective sample size of tokens of one age; of 8 or more", "ess"
    ),
    Metric(
        "train/ess_sequence",
        "share",
        "Effective sample size of pi / mu of sequences; of 8 or more",
        "ess",
    ),
    Metric(
        "train/ess_sequence/*",
        "share",
        "Effective sample size of sequences, by the age of the oldest token; of 8 or more",
        "ess",
    ),
    Metric("train/log_ratio_m2", "nats^2", "Mean of (log pi / mu)^2 of trained tokens", "mean"),
    Metric(
        "train/log_ratio_m2/*", "nats^2", "Mean of (log pi / mu)^2 of tokens of one age", "mean"
    ),
    Metric(
        "train/mismatch_kl", "nats", "KL of the engine's from the learner's distribution", "mean"
    ),
    Metric(
        "train/mismatch_kl/*",
        "nats",
        "KL of the engine's from the learner's distribution, for tokens of one age",
        "mean",
    ),
    Metric(
        "train/kv_gap/*",
        "nats",
        "Mean |engine - learner| log-probability of tokens that the learner's own weights sampled "
        "over a KV cache of so many versions before (--kv-across-pushes keep)",
        "mean",
    ),
    Metric("train/logprob_diff", "nats", "Mean |engine - learner| log-probability", "mean"),
    Metric("train/logprob_diff_max", "nats", "Largest |engine - learner| log-probability", "max"),
    Metric(
        "train/logprob_diff_on_policy",
        "nats",
        "Mean |engine - learner| log-probability of tokens that the learner's own weights sampled",
        "mean",
    ),
    Metric(
        "train/logprob_diff_on_policy_max",
        "nats",
        "Largest |engine - learner| log-probability of tokens that the learner's own weights "
        "sampled",
        "max",
    ),
    Metric("train/value_loss", "loss", "Objective of the critic, mean over the steps", "sum"),
    Metric(
        "train/value_clipfrac", "share", "Share of trained tokens whose value was clipped", "mean"
    ),
    Metric(
        "train/explained_variance",
        "share",
        "Share of the variance of returns that the critic's values at the start of the "
        "iteration explain: 1 is all of it, 0 is no more than a constant explains",
        "mean",
    ),
    Metric("train/critic_grad_norm", "norm", "Norm of the critic's gradient before clipping"),
    Metric("train/critic_lr", "rate", "Learning rate of the critic's last step"),
    Metric("train/grad_norm", "norm", "Gradient norm before clipping, mean over the steps"),
    Metric("train/lr", "rate", "Learning rate of the last step"),
    Metric("train/num_steps", "steps", "Optimizer steps of the policy taken"),
    Metric(
        "train/num_skipped_steps",
        "steps",
        "Optimizer steps of all models skipped: loss or gradient not finite, or no token to train",
    ),
    Metric("train/num_tokens", "tokens", "Tokens that have an advantage and are not masked"),
    Metric("train/masked_token_share", "share", "Share of sampled tokens left out of the loss"),
    Metric("train/masked_turn_share", "share", "Share of turns with tokens left out of the loss"),
    Metric("train/num_stale_tokens", "tokens", "Sampled tokens older than the bound"),
    Metric("train/num_off_policy_tokens", "tokens", "Tokens of a turn's older versions, masked"),
    Metric("train/num_missing_trajectories", "trajectories", "Payloads that failed their checksum"),
    Metric("train/age_histogram", "tokens", "Sampled tokens by age in iterations"),
    Metric("train/age_mean", "iterations", "Mean age of a sampled token"),
    Metric("train/age_max_trained", "iterations", "Greatest age of a trained token"),
    # ---- buffer: its figures when the step was reported ----
    Metric("buffer/ready", "groups", "Scored groups that wait for a lease"),
    Metric("buffer/charged", "groups", "Groups minted and not yet contained in published weights"),
    Metric("buffer/running", "episodes", "Episodes in workers"),
    Metric("buffer/queued", "episodes", "Episodes that wait for a worker"),
    Metric("buffer/judging", "groups", "Groups that wait for their scores"),
    Metric(
        "buffer/parked_reports",
        "reports",
        "Reports that wait for the announcement of their version",
    ),
    Metric(
        "buffer/waiting_tasks",
        "tasks",
        "Tasks that are new or to be minted again, and find no room",
    ),
    Metric("buffer/turns_running", "turns", "Turns that hold a permit, as workers last said"),
    Metric("buffer/turns_queued", "turns", "Turns that wait for a permit, as workers last said"),
    Metric(
        "buffer/free_permit_share",
        "share",
        "Share of permits that were free while no turn waited, since the last iteration",
    ),
    Metric(
        "buffer/starvation",
        "ratio",
        "Trained / generated tokens of the slowest tenth of groups, over the ratio of all groups",
    ),
    Metric("buffer/cap", "groups", "Adaptive cap on charged groups"),
    Metric("buffer/old_share", "share", "Share of sampled tokens older than the bound, smoothed"),
    Metric("buffer/store_bytes", "bytes", "Size of stored trajectories that are still needed"),
    Metric(
        "buffer/sampled_tokens",
        "tokens",
        "Tokens sampled for all episodes reported since the buffer started, evaluation included",
    ),
    Metric(
        "buffer/total_sampled_tokens",
        "tokens",
        "Tokens sampled by training episodes that are done, since the run began, its "
        "continuations included (--max-total-sampled-tokens)",
    ),
    Metric("buffer/workers", "processes", "Agent workers that are alive"),
    Metric(
        "buffer/played_episodes",
        "episodes",
        "Episodes with an attempt that has ended since the buffer started, evaluation included",
    ),
    Metric(
        "buffer/retried_episodes",
        "episodes",
        "Episodes that failed and were played again, so what is trained avoided the failure",
    ),
    Metric(
        "buffer/repeated_groups",
        "groups",
        "Groups minted again since the buffer started, for one that became stale "
        "(--staleness-policy) or was cut short as surplus (--over-sampling-batch-size)",
    ),
    Metric(
        "buffer/given_up_tasks", "tasks", "Tasks whose third group, too, became stale or surplus"
    ),
    Metric(
        "buffer/surplus_tokens",
        "tokens",
        "Tokens sampled for finished episodes of groups that were surplus, since the buffer "
        "started",
    ),
    Metric(
        "buffer/failed_episodes",
        "episodes",
        "Episodes that failed for good since the buffer started",
    ),
    Metric(
        "buffer/too_long_prompts",
        "episodes",
        "Episodes whose first prompt did not fit (--rollout-max-prompt-len), so that their "
        "group is filtered",
    ),
    Metric("buffer/failed_attempts/*", "attempts", "Attempts that ended with this outcome"),
    Metric("buffer/fates/*", "groups", "Groups of the run with this fate"),
    # ---- perf ----
    Metric("perf/lease_wait_s", "s", "Time that the learner waits for its rollout batch"),
    Metric("perf/iteration_s", "s", "Time of a whole iteration, waiting included"),
    Metric(
        "perf/learner_idle_share",
        "share",
        "Share of an iteration in which the learner waits for its batch",
    ),
    Metric("perf/push_s", "s", "Time of the last weight push, from its first to its last call"),
    Metric("perf/push_pause_s", "s", "Time that engines paused for the last weight push"),
    Metric(
        "perf/push_bytes",
        "bytes",
        "Bytes of the last weight push to each engine, or to a shared disk",
    ),
    Metric(
        "perf/eval_hold_s",
        "s",
        "Time that the last push waited for pinned evaluations (--eval-mode)",
    ),
    Metric(
        "perf/engine_silence_s",
        "s",
        "Time in which engines took no turns although no push was going on, summed over engines",
    ),
    Metric(
        "perf/engine_tokens_per_s",
        "tokens/s",
        "Sampled tokens a second over the last 5 iterations: growth of buffer/sampled_tokens "
        "over their time",
    ),
    # ---- eval: outside the ledger, by evaluation set ----
    Metric("eval/*/score", "reward", "Mean reward of the evaluation set's episodes"),
    Metric("eval/*/n", "episodes", "Episodes of the set with outcome done"),
    Metric("eval/*/failed", "episodes", "Episodes of the set without outcome done"),
    Metric("eval/*/version_min", "version", "Oldest weights that sampled a token of the set"),
    Metric("eval/*/version_max", "version", "Newest weights that sampled a token of the set"),
    Metric("eval/*/wall_s", "s", "Wall time of an episode"),
    Metric("eval/*/turns", "turns", "Turns of a trajectory"),
    Metric("eval/*/sampled_tokens", "tokens", "Sampled tokens of a trajectory"),
    Metric("eval/*/pass@*", "share", "Chance that one of so many episodes of a task has reward 1"),
    Metric("eval/*/avg@*", "reward", "Mean over tasks of the mean of so many episodes"),
    Metric(
        "eval/*/maj@*",
        "reward",
        "Mean over tasks of what the most frequent of so many answers earns",
    ),
    Metric(
        "eval/*/short_tasks",
        "tasks",
        "Tasks that lost episodes: pass@k and maj@k of more than they have leave them out",
    ),
    Metric("eval/*/metric/*", "any", "Mean of a metric that the Env counts"),
)

REGISTRY = Registry(_DECLARED)
