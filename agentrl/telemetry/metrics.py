"""Every metric, declared once: name, unit, help; and its reduction, if losses report it.

Names are `family/name`; families are rollout, train, buffer, perf and eval. A `*` stands for one
word between slashes: an age, a fate, an evaluation set. What an Env says of its own metrics is
declared by `explain`, so that dashboards can explain them.

A name that nobody declared is a mistake: `Registry(strict=True)` raises, otherwise it is logged
once and the value is kept. An Env may count what it does not explain: `rollout/` names are kept
without a word.
"""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

import msgspec

__all__ = ["REGISTRY", "Metric", "Reduction", "Registry"]

logger = logging.getLogger(__name__)

_FAMILIES = ("rollout", "train", "buffer", "perf", "eval")


#: How reports of one metric become one number (`agentrl.learner.measures`).
Reduction = Literal["sum", "mean", "max", "ess"]


class Metric(msgspec.Struct, frozen=True):
    """What a number means. `unit` is a plural noun, `s`, `bytes`, `share` (0..1) or `nats`.
    `reduce`: of what a loss reports for each micro-batch, under its name without `train/`."""

    name: str
    unit: str
    help: str
    reduce: Reduction | None = None


class Registry:
    """The declared metrics, by name."""

    def __init__(self, metrics: Iterable[Metric] = (), *, strict: bool = False) -> None:
        self._strict = strict
        self._exact: dict[str, Metric] = {}
        self._patterns: list[tuple[re.Pattern[str], Metric]] = []
        self._reported: set[str] = set()
        for metric in metrics:
            self.declare(metric)

    def __iter__(self) -> Iterator[Metric]:
        yield from self._exact.values()

    def declare(self, metric: Metric) -> None:
        """Add a metric. Raises ValueError when its name is taken or has no known family."""
        if metric.name in self._exact:
            raise ValueError(f"metric {metric.name} is declared twice")
        if metric.name.partition("/")[0] not in _FAMILIES:
            raise ValueError(f"metric {metric.name}: its family must be one of {_FAMILIES}")
        self._exact[metric.name] = metric
        if "*" in metric.name:
            words = (re.escape(word) for word in metric.name.split("*"))
            self._patterns.append((re.compile("[^/]+".join(words)), metric))

    def find(self, name: str) -> Metric | None:
        """The declaration that covers `name`, or None."""
        if "*" not in name and name in self._exact:
            return self._exact[name]
        found = (m for pattern, m in reversed(self._patterns) if pattern.fullmatch(name))
        return next(found, None)

    def explain(self, metrics: Mapping[str, str]) -> None:
        """Declare what an Env counts, by its own names; one that the framework has keeps its
        meaning."""
        for name, words in metrics.items():
            for full in (f"rollout/{name}", f"eval/*/metric/{name}"):
                if full not in self._exact:
                    self.declare(Metric(full, "any", words))

    def check(self, names: Iterable[str]) -> None:
        """Notice names that nobody declared: raise ValueError if strict, else log each once."""
        unknown = [n for n in names if n not in self._reported and self.find(n) is None]
        if unknown and self._strict:
            raise ValueError(f"undeclared metrics {unknown}: add them to agentrl.telemetry.metrics")
        for name in unknown:
            self._reported.add(name)
            if name.startswith("rollout/"):
                continue
            logger.warning("metric %s is not declared: what it means is unknown", name)


_DECLARED = (
    # ---- rollout: the groups an iteration consumes ----
    Metric("rollout/reward_mean", "reward", "mean judged reward of the iteration's episodes"),
    Metric("rollout/reward_std", "reward", "standard deviation of those rewards"),
    Metric("rollout/num_groups", "groups", "groups of the rollout batch"),
    Metric("rollout/num_episodes", "episodes", "episodes of the rollout batch with outcome done"),
    Metric("rollout/zero_std_group_share", "share", "groups whose rewards are all equal"),
    Metric("rollout/response_length_mean", "tokens", "sampled tokens of an episode"),
    Metric("rollout/turns_mean", "turns", "turns of an episode"),
    Metric(
        "rollout/role/*/reward_mean",
        "reward",
        "mean judged reward of a role's conversations, where there are roles",
    ),
    Metric("rollout/part/*/*", "any", "rollout/* of the groups of one part of a mixture"),
    Metric("rollout/tool_calls", "calls", "tool calls of an episode that ran"),
    Metric("rollout/tool_errors", "calls", "tool calls of an episode that failed or could not run"),
    Metric("rollout/tool_use", "share", "episodes that tried a tool call, where the Env has tools"),
    Metric("rollout/segments", "segments", "trajectories of an episode whose agent owns its loop"),
    Metric("rollout/malformed_calls", "turns", "... its turns whose tool calls cannot be taken"),
    Metric("rollout/refused_calls", "calls", "... its calls that a spent budget refused"),
    Metric("rollout/ignored_settings", "calls", "... its calls that asked for another sampling"),
    Metric(
        "rollout/policy_error",
        "share",
        "... which raised what its author gives a reward (failures, policy_error)",
    ),
    Metric("rollout/abandoned_calls", "calls", "... its calls that the agent did not wait for"),
    Metric("rollout/reward_mismatch", "episodes", "rewards not found again from the sampled text"),
    Metric("rollout/retractions", "retractions", "weight pushes that an episode's turns survived"),
    Metric(
        "rollout/resampled_turns",
        "turns",
        "given up at a weight push and sampled again, of an episode (--no-partial-rollout)",
    ),
    Metric("rollout/truncated", "share", "episodes that a limit ended, not their task"),
    Metric(
        "rollout/overlong_penalty",
        "reward",
        "mean of what length takes from an episode's judged reward (--overlong-buffer-length)",
    ),
    Metric(
        "rollout/num_overlong_filtered",
        "episodes",
        "episodes without a gradient, as a limit on tokens ended them (--overlong-filter)",
    ),
    Metric(
        "rollout/num_filtered_samples",
        "episodes",
        "episodes that are not trained, as a function of --rollout-sample-filter-path said",
    ),
    # ---- train: the optimizer steps of an iteration ----
    Metric("train/loss", "loss", "objective, mean over the steps", "sum"),
    Metric("train/pg_loss", "loss", "policy-gradient part of the objective", "sum"),
    Metric("train/kl_loss", "nats", "KL penalty to the reference, before its coefficient", "sum"),
    Metric(
        "train/opd_reverse_kl",
        "nats",
        "log pi - log pi_teacher of a trained token, at the start of the iteration (--use-opd)",
        "mean",
    ),
    Metric("train/kl_first", "nats", "KL penalty at the first step of the iteration"),
    Metric("train/nll", "nats", "negative log-likelihood of a demonstrated token", "mean"),
    Metric("train/custom_*", "any", "what a custom loss sums, mean over the steps", "sum"),
    Metric(
        "train/entropy",
        "nats",
        "policy entropy of a trained token (of a group that has an advantage)",
        "mean",
    ),
    Metric("train/pg_clipfrac", "share", "trained tokens whose ratio was clipped", "mean"),
    Metric(
        "train/tis_clipfrac",
        "share",
        "trained tokens whose ratio to the engine left its bounds (--tis-clip)",
        "mean",
    ),
    Metric(
        "train/dropped",
        "share",
        "trained tokens that a trust region, or a correction of the user's, dropped",
        "mean",
    ),
    Metric(
        "train/correction/*",
        "any",
        "what --custom-tis-function-path measures, mean over trained tokens",
        "mean",
    ),
    Metric("train/ess", "share", "effective sample size of pi / mu of trained tokens", "ess"),
    Metric("train/ess/*", "share", "the same for tokens of one age", "ess"),
    Metric("train/ess_sequence", "share", "effective sample size of pi / mu of sequences", "ess"),
    Metric("train/ess_sequence/*", "share", "the same by the oldest trained token", "ess"),
    Metric("train/log_ratio_m2", "nats^2", "mean of (log pi / mu)^2 of trained tokens", "mean"),
    Metric("train/log_ratio_m2/*", "nats^2", "the same for tokens of one age", "mean"),
    Metric(
        "train/mismatch_kl", "nats", "KL of the engine's from the learner's distribution", "mean"
    ),
    Metric("train/mismatch_kl/*", "nats", "the same for tokens of one age", "mean"),
    Metric("train/logprob_diff", "nats", "mean |engine - learner| log-probability", "mean"),
    Metric("train/logprob_diff_max", "nats", "largest |engine - learner| log-probability", "max"),
    Metric(
        "train/logprob_diff_on_policy",
        "nats",
        "mean over tokens of the learner's own weights",
        "mean",
    ),
    Metric("train/logprob_diff_on_policy_max", "nats", "largest over those tokens", "max"),
    Metric("train/value_loss", "loss", "objective of the critic, mean over the steps", "sum"),
    Metric("train/value_clipfrac", "share", "trained tokens whose value was clipped", "mean"),
    Metric(
        "train/explained_variance",
        "share",
        "what the critic's values, at the start of the iteration, explain of the variance of "
        "returns: 1 all of it, 0 no more than a constant does",
        "mean",
    ),
    Metric("train/critic_grad_norm", "norm", "of the critic's gradient before clipping, mean"),
    Metric("train/critic_lr", "rate", "learning rate of the critic's last step"),
    Metric("train/grad_norm", "norm", "gradient norm before clipping, mean over the steps"),
    Metric("train/lr", "rate", "learning rate of the last step"),
    Metric("train/num_steps", "steps", "optimizer steps of the policy taken"),
    Metric("train/num_skipped_steps", "steps", "optimizer steps of all models skipped: not finite"),
    Metric("train/num_tokens", "tokens", "tokens with an advantage, and not masked"),
    Metric("train/masked_token_share", "share", "sampled tokens left out of the loss"),
    Metric("train/masked_turn_share", "share", "turns with tokens left out of the loss"),
    Metric("train/num_stale_tokens", "tokens", "sampled tokens older than the bound"),
    Metric("train/num_off_policy_tokens", "tokens", "tokens of a turn's older versions, masked"),
    Metric("train/num_missing_trajectories", "trajectories", "payloads that failed their checksum"),
    Metric("train/age_histogram", "tokens", "sampled tokens by age in iterations"),
    Metric("train/age_mean", "iterations", "mean age of a sampled token"),
    Metric("train/age_max_trained", "iterations", "greatest age of a trained token"),
    # ---- buffer: its figures when the step was reported ----
    Metric("buffer/ready", "groups", "judged groups that wait for a lease"),
    Metric("buffer/charged", "groups", "groups minted and not yet contained in published weights"),
    Metric("buffer/running", "episodes", "episodes in workers"),
    Metric("buffer/queued", "episodes", "episodes that wait for a worker"),
    Metric("buffer/judging", "groups", "groups that wait for their verdict"),
    Metric("buffer/parked_reports", "reports", "that wait for the announcement of their version"),
    Metric("buffer/waiting_tasks", "tasks", "offered, or to be minted again, and without room"),
    Metric("buffer/turns_running", "turns", "turns that hold a permit, as workers last said"),
    Metric("buffer/turns_queued", "turns", "turns that wait for a permit, as workers last said"),
    Metric(
        "buffer/free_permit_share",
        "share",
        "permits that were free while no turn waited, since the last iteration: the engines' idle",
    ),
    Metric(
        "buffer/starvation",
        "ratio",
        "trained / generated tokens of the slowest tenth of groups, over that of all",
    ),
    Metric("buffer/cap", "groups", "adaptive cap on charged groups"),
    Metric("buffer/old_share", "share", "sampled tokens older than the bound, smoothed"),
    Metric("buffer/store_bytes", "bytes", "stored trajectories that are still needed"),
    Metric(
        "buffer/sampled_tokens",
        "tokens",
        "sampled for all episodes reported since the buffer started, evaluation included",
    ),
    Metric(
        "buffer/total_sampled_tokens",
        "tokens",
        "sampled by training episodes that are done, since the run began, programs that it was "
        "continued by included (--max-total-sampled-tokens)",
    ),
    Metric("buffer/workers", "processes", "agent workers that are alive"),
    Metric(
        "buffer/played_episodes",
        "episodes",
        "of which an attempt has ended since the buffer started, evaluation included",
    ),
    Metric(
        "buffer/retried_episodes",
        "episodes",
        "of those: failed and were played again, so what is trained avoided the failure",
    ),
    Metric(
        "buffer/repeated_groups",
        "groups",
        "minted again since the buffer started, for one that became stale (--staleness-policy) or "
        "was cut short as surplus (--over-sampling-batch-size)",
    ),
    Metric("buffer/given_up_tasks", "tasks", "whose third group became stale or surplus as well"),
    Metric(
        "buffer/surplus_tokens",
        "tokens",
        "sampled for finished episodes of groups that were surplus, since the buffer started",
    ),
    Metric("buffer/failed_episodes", "episodes", "of those: failed for good"),
    Metric(
        "buffer/too_long_prompts",
        "episodes",
        "of those: first prompt did not fit (--rollout-max-prompt-len), so their group is filtered",
    ),
    Metric("buffer/failed_attempts/*", "attempts", "attempts that ended with this outcome"),
    Metric("buffer/fates/*", "groups", "groups of the run with this fate"),
    # ---- perf ----
    Metric("perf/lease_wait_s", "s", "the learner's wait for its rollout batch"),
    Metric("perf/iteration_s", "s", "whole iteration, waiting included"),
    Metric("perf/learner_idle_share", "share", "lease_wait_s / iteration_s"),
    Metric("perf/push_s", "s", "last weight push, from its first to its last call"),
    Metric("perf/push_pause_s", "s", "how long the engines were paused by it"),
    Metric("perf/push_bytes", "bytes", "bytes of it to each engine, or to a disk that they share"),
    Metric("perf/eval_hold_s", "s", "how long it waited for pinned evaluations (--eval-mode)"),
    Metric(
        "perf/engine_silence_s",
        "s",
        "time in which engines took no turns although no push was going on, summed over engines",
    ),
    Metric(
        "perf/engine_tokens_per_s",
        "tokens/s",
        "growth of buffer/sampled_tokens over the last 5 iterations, over their time",
    ),
    # ---- eval: outside the ledger, by evaluation set ----
    Metric("eval/*/score", "reward", "mean reward of the set's episodes"),
    Metric("eval/*/n", "episodes", "episodes with outcome done"),
    Metric("eval/*/failed", "episodes", "episodes without one"),
    Metric("eval/*/version_min", "version", "oldest weights that sampled a token"),
    Metric("eval/*/version_max", "version", "newest weights that sampled a token"),
    Metric("eval/*/wall_s", "s", "wall time of an episode"),
    Metric("eval/*/turns", "turns", "turns of a trajectory"),
    Metric("eval/*/sampled_tokens", "tokens", "sampled tokens of a trajectory"),
    Metric("eval/*/pass@*", "share", "chance that one of so many episodes of a task has reward 1"),
    Metric("eval/*/avg@*", "reward", "mean over tasks of the mean of so many episodes"),
    Metric(
        "eval/*/maj@*", "reward", "what the most frequent of so many answers earns, mean over tasks"
    ),
    Metric("eval/*/metric/*", "any", "mean of a metric that the Env counts"),
)

REGISTRY = Registry(_DECLARED)
