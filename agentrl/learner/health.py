"""`Health`: checks that run by themselves in every iteration and stop a run that cannot be sound.

    engine      engine and learner give on-policy tokens the same probabilities    over 256 tokens
    reference   the first step's KL to the reference model is 0                    once, no --load
    reward      no worker found a reward that the sampled text does not explain    always
    advantages  some episode has one                                               over a streak
    tools       some episode of an Env with tools calls one                        over a streak
    entropy     the policy has not narrowed to one answer while its reward fell    over a streak
    drift       old tokens are still likely under the policy (a warning)           over a streak

A false alarm is worse than a missed one. What a sound run may pass through is a warning, said once:
whatever a run has shown once (an advantage, a tool call, a reward), it may lose again. A metric
that is absent is not judged; nor is a run that plays no episodes. Pure, but for the warnings.
"""

import functools
import logging
import statistics
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.algorithms.base import Algorithm
from agentrl.algorithms.mismatch import MAX_AGE_BUCKET
from agentrl.config.corrections import holds_old_tokens
from agentrl.config.mixture import ways_of
from agentrl.errors import HealthError
from agentrl.learner.metrics import LogprobDiff
from agentrl.learner.on_policy import OnPolicyTokens
from agentrl.learner.tolerance import Tolerance, tolerance_of

__all__ = [
    "COLLAPSED_REWARD",
    "MAX_CORRECTED_DRIFT",
    "MAX_DRIFT",
    "MAX_START_KL",
    "MIN_DRIFT_TOKENS",
    "MIN_ENTROPY",
    "MIN_EPISODES",
    "PATIENCE",
    "EngineDisagreesError",
    "Health",
    "check_logprobs",
]

logger = logging.getLogger(__name__)

#: Largest |KL| to the reference model before the first update, in nats: the same weights in the
#: same program, so no difference but that of packing.
MAX_START_KL = 1e-2
#: Iterations in a row that make a streak: one or two without a signal are common.
PATIENCE = 8
#: Episodes in a streak, so that small iterations wait longer: what one episode in 100 does is
#: missing from 512 of them once in 170 runs.
MIN_EPISODES = 512
#: Mean policy entropy of a trained token, in nats, below which a policy counts as collapsed. A
#: sound small agent ends near 0.04.
MIN_ENTROPY = 0.005
#: Mean of (log pi / mu)^2 of trained tokens of one age, in nats^2. Where a small search agent was
#: trained on tokens of a constant age (docs/results/staleness.md), each run that fell was above the
#: first for a streak, and no run that a correction held up was above the second for one. A large
#: model may bear more.
MAX_DRIFT, MAX_CORRECTED_DRIFT = 0.1, 0.4
_LOWER = "lower --max-staleness or --lr"
#: Sampled tokens of an age in an iteration below which the drift of that age is not judged: one odd
#: token would be most of the mean.
MIN_DRIFT_TOKENS = 64
#: A collapsed policy that earns less than this share of its best reward is not learning.
COLLAPSED_REWARD = 0.5


class EngineDisagreesError(HealthError):
    """Engine and learner disagree about the same tokens."""


class Health:
    """The checks of one run and what they remember of it. One on each learner rank: all of them see
    the same numbers, so all stop together."""

    def __init__(self, algorithm: Algorithm) -> None:
        self._algorithm = algorithm
        self._cfg = cfg = algorithm.cfg
        self._tolerance = tolerance_of(cfg)
        self._is_new = True
        self._on_policy = OnPolicyTokens()
        self._idle, self._toolless, self._narrow = _Streak(), _Streak(), _Streak()
        self._drifted: defaultdict[int, _Streak] = defaultdict(_Streak)
        self._had_signal = self._had_tools = False
        self._rewards: deque[float] = deque(maxlen=PATIENCE)
        self._best_reward = 0.0
        self._warned: set[str] = set()

    def check(self, number: int, metrics: Mapping[str, float], on_policy: LogprobDiff) -> None:
        """Take in iteration `number`: `rollout/*` and `train/*` together, and the log-probability
        difference of its on-policy tokens. Raises HealthError."""
        if not self._algorithm.needs.engines:
            return
        if self._is_new:
            # A learner that came back does not know what the run has shown before.
            self._had_signal = self._had_tools = number > 1
            self._is_new = False
        self._check_reward_source(number, metrics)
        self._check_engine(number, metrics, on_policy)
        self._check_reference(number, metrics)
        num_episodes = int(metrics.get("rollout/num_episodes", 0))
        if num_episodes:
            self._check_advantages(number, metrics, num_episodes)
            self._check_tools(number, metrics, num_episodes)
            self._check_entropy(number, metrics, num_episodes)
            self._check_drift(number, metrics, num_episodes)

    def _check_reward_source(self, number: int, metrics: Mapping[str, float]) -> None:
        found = metrics.get("rollout/reward_mismatch", 0.0)
        if found > 0:
            raise HealthError(
                f"rewards from outside the sampled text, seen in iteration {number}: the Env "
                "declares reward_reads_text_only, but a fresh Env gave the same final text another "
                f"reward ({found:.3g} times in a worker). Likely causes: `score` reads what a tool "
                "returned or left in the Env, the Env keeps state between episodes, or its reward "
                "is random. The episodes are named in the workers' logs. Let `score` read its "
                "`text` alone, or take the declaration back if the reward is meant to see more"
            )

    def _check_engine(
        self, number: int, metrics: Mapping[str, float], on_policy: LogprobDiff
    ) -> None:
        """Whenever there are enough tokens that the learner's own weights sampled."""
        kl = metrics.get("train/mismatch_kl/age_0", 0.0)
        agreement = self._on_policy.add(on_policy, kl)
        if agreement is None:
            return
        on_policy, kl = agreement.diff, agreement.kl
        if note := check_logprobs(number, on_policy, self._tolerance):
            self._warn("engine", note)
        if not kl <= self._tolerance.max_kl:
            raise EngineDisagreesError(
                f"engine and learner disagree up to iteration {number}: the KL between them is "
                f"{kl:.3g} nats for trained on-policy tokens (limit {self._tolerance.max_kl:g} in "
                f"{self._tolerance.precision}), though "
                f"log-probabilities differ by {on_policy.mean:.3g} in the mean: few tokens differ "
                f"much, by {on_policy.maximum:.3g} at most. Likely causes: special or stop tokens "
                "that one side masks, or a penalty or filter of the engine's sampling. Compare one "
                "prompt on both sides, token by token"
            )

    def _check_reference(self, number: int, metrics: Mapping[str, float]) -> None:
        """In iteration 1, whose first step still has the weights that the run began with. Under
        --load those are not the reference's, which are --hf-checkpoint."""
        kl = metrics.get("train/kl_first")
        if self._cfg.load is not None or number != 1 or kl is None or abs(kl) <= MAX_START_KL:
            return
        raise HealthError(
            f"the KL to the reference model is {kl:.3g} nats at the first optimizer step of "
            f"iteration {number} (limit {MAX_START_KL:g}), before any update. Policy and reference "
            "must be the same weights then. Likely causes: the reference was loaded from another "
            "checkpoint or in another precision, dropout is on, or the two passes differ in "
            "temperature, packing or positions. Run without --use-kl-loss, or mend that first"
        )

    def _check_advantages(
        self, number: int, metrics: Mapping[str, float], num_episodes: int
    ) -> None:
        """From the start: a stop. Later, or where every episode earns the same: a warning."""
        mean = metrics.get("rollout/reward_mean", 0.0)
        is_idle = self._is_idle(metrics)
        if not is_idle or (mean > 0 and metrics.get("rollout/reward_std") == 0):
            self._had_signal = True
        if not self._idle.goes_on(is_idle, num_episodes):
            return
        facts = (
            f"no episode had an advantage for {self._idle} up to iteration {number}: rewards were "
            f"equal within every group (last mean reward {mean:.3g})"
        )
        if self._had_signal:
            self._warn(
                "advantages", f"{facts}. Nothing is learnt now: are all tasks solved, or too hard?"
            )
            return
        cut = metrics.get("rollout/truncated", 0.0)
        untrained = ", and --overlong-filter trains none of those" * self._cfg.overlong_filter
        raise HealthError(
            f"{facts}, since the run began, so no weight has moved. {cut:.0%} of the last episodes "
            f"were cut by a limit{untrained}. Likely causes: the Env never gives a reward (wrong "
            "label, wrong key, an answer format that the prompt does not ask for), the episodes of "
            "a group are copies (temperature), limits cut the answer off, or the tasks are too "
            "hard. Score one right answer with the Env by hand, then try easier tasks or more "
            f"--n-samples-per-prompt ({self._cfg.n_samples_per_prompt} now)"
        )

    def _is_idle(self, metrics: Mapping[str, float]) -> bool:
        """Whether no episode had an advantage: nothing was worth computing, or, under a loss with
        other terms, every episode earned the same, of which the algorithm learns nothing."""
        # A token that was planned and then masked or lost leaves a masked share behind.
        if metrics.get("train/num_tokens") == 0 and "train/masked_token_share" not in metrics:
            return True
        if metrics.get("rollout/overlong_penalty"):  # what was judged alike may be shaped unlike
            return False
        is_constant = metrics.get("rollout/reward_std") == 0
        return is_constant and not self._algorithm.teaches(metrics.get("rollout/reward_mean", 0.0))

    @functools.cached_property
    def _may_call(self) -> bool:
        """Whether an episode of some part of the run may go on after a call."""
        ways = ways_of(self._cfg)
        return any(way.max_tool_calls != 0 and way.max_turns != 1 for way in ways)

    def _check_tools(self, number: int, metrics: Mapping[str, float], num_episodes: int) -> None:
        """From the start, and with nothing that answered the model: a stop. Else a warning."""
        if not self._may_call or "rollout/tool_use" not in metrics:
            return
        names = ("rollout/tool_use", "rollout/tool_calls", "rollout/tool_errors")
        is_toolless = all(metrics.get(name, 0.0) == 0 for name in names)
        self._had_tools |= not is_toolless
        if not self._toolless.goes_on(is_toolless, num_episodes):
            return
        facts = (
            f"the Env has tools and no episode tried to call one for {self._toolless} up to "
            f"iteration {number}"
        )
        # More turns than one without a call: the Env's own `step` talks to the model.
        turns = metrics.get("rollout/turns_mean", 1.0)
        if self._had_tools or turns > 1:
            self._warn("tools", f"{facts} ({turns:.3g} turns an episode)")
            return
        cfg = self._cfg
        written = f"--chat-format {cfg.chat_format or 'of its files'}"
        if cfg.chat_template is not None:
            written = f"--chat-template {cfg.chat_template}"
        raise HealthError(
            f"{facts}, since the run began. What is never sampled is never reinforced. Likely "
            "causes: the model writes calls in another format than "
            f"{written}, or was never taught to call tools, or neither the prompt "
            "nor the tools' descriptions say that they are there. Read a few trajectories; change "
            "the prompt, the chat format or the model. For a run without tools give the Env none, "
            "or --max-tool-calls 0"
        )

    def _check_entropy(self, number: int, metrics: Mapping[str, float], num_episodes: int) -> None:
        """Iterations that trained nothing tell no entropy: they neither count nor end a streak."""
        if "rollout/reward_mean" not in metrics:
            return
        self._rewards.append(metrics["rollout/reward_mean"])
        reward = statistics.fmean(self._rewards)
        if len(self._rewards) == PATIENCE:
            self._best_reward = max(self._best_reward, reward)
        entropy = metrics.get("train/entropy")
        if entropy is None or not self._narrow.goes_on(entropy < MIN_ENTROPY, num_episodes):
            return
        facts = (
            f"the policy's entropy was below {MIN_ENTROPY:g} nats a token for {self._narrow} up to "
            f"iteration {number} (last {entropy:.2g}); mean reward of {PATIENCE} iterations "
            f"{reward:.3g}, best {self._best_reward:.3g}"
        )
        if self._best_reward <= 0 or reward >= COLLAPSED_REWARD * self._best_reward:
            self._warn("entropy", f"{facts}. Little is left to explore")
            return
        raise HealthError(
            f"{facts}. The policy has collapsed to one answer, and a worse one. Likely causes: a "
            "learning rate that is too high, too many optimizer steps on the same episodes, old "
            "tokens without correction (--use-tis, --max-staleness), or a reward that bad text can "
            "win. Begin again with a lower --lr, a higher --eps-clip-high, an --entropy-coef or a "
            "KL penalty (--use-kl-loss)"
        )

    def _check_drift(self, number: int, metrics: Mapping[str, float], num_episodes: int) -> None:
        """Of tokens that an older policy sampled; the engine's own error is another check's. Each
        age has a streak of its own: between two pushes the ages rise, and the drift with them."""
        name = "train/log_ratio_m2/age_"
        drifts = {int(key[len(name) :]): metrics[key] for key in metrics if key.startswith(name)}
        counts: Any = metrics.get("train/age_histogram")
        bound, advice = MAX_DRIFT, f"Give --trust-region negative; then {_LOWER}"
        if holds_old_tokens(self._cfg):
            bound, advice = MAX_CORRECTED_DRIFT, _LOWER.capitalize()
        streaks = {
            age: self._drifted[age]
            for age in sorted(drifts)
            if age > 0 and (counts is None or self._num_tokens(counts, age) >= MIN_DRIFT_TOKENS)
        }
        told = [
            age
            for age, streak in streaks.items()
            if streak.goes_on(drifts[age] > bound, num_episodes)
        ]
        if not told:
            return
        age = max(told, key=drifts.__getitem__)
        self._warn(
            "drift",
            f"the policy moves fast beside the age of what it learns from: in iteration {number} "
            f"the mean of (log pi / mu)^2 of tokens of age {age} is {drifts[age]:.2g} nats^2, "
            f"above {bound:g} for {streaks[age].num_iterations} iterations with tokens of that "
            f"age. {advice} (docs/async.md)",
        )

    def _num_tokens(self, counts: Sequence[int], age: int) -> int:
        """Of an age, by the histogram; the last metric by age pools all that may be trained."""
        last = age if age < MAX_AGE_BUCKET else self._cfg.staleness_bound
        return sum(counts[age : last + 1])

    def _warn(self, check: str, text: str) -> None:
        if check not in self._warned:
            self._warned.add(check)
            logger.warning("%s", text)


class _Streak:
    """Consecutive iterations of which something is true."""

    def __init__(self) -> None:
        self.num_iterations = self._num_episodes = 0

    def __str__(self) -> str:
        return f"{self.num_iterations} iterations ({self._num_episodes} episodes)"

    def goes_on(self, is_true: bool, num_episodes: int) -> bool:
        """Take in one more iteration; whether the streak is long enough to mean something."""
        if not is_true:
            self.num_iterations = self._num_episodes = 0
            return False
        self.num_iterations += 1
        self._num_episodes += num_episodes
        return self.num_iterations >= PATIENCE and self._num_episodes >= MIN_EPISODES


def check_logprobs(number: int, on_policy: LogprobDiff, tolerance: Tolerance) -> str | None:
    """What to say of a large mean difference, if it is one. Raises EngineDisagreesError when it is
    too large."""
    if on_policy.num_tokens == 0 or on_policy.mean <= tolerance.note_diff:
        return None
    facts = (
        f"up to iteration {number}: |engine - learner| log-probability of {on_policy.num_tokens} "
        f"on-policy tokens is {on_policy.mean:.3g} in the mean (limit {tolerance.max_diff:g} in "
        f"{tolerance.precision}) and {on_policy.maximum:.3g} at most"
    )
    if on_policy.mean <= tolerance.max_diff:
        return f"engine and learner differ more than most {facts}"
    raise EngineDisagreesError(
        f"engine and learner disagree {facts}. Likely causes: the weights of the engine are not "
        "those of the learner (weight names, layout or a partial push), another sampling "
        "temperature on the two sides, another architecture setting (rope base, norm epsilon, tied "
        "embeddings), or a different tokenization. Compare one prompt on both sides before "
        "training further"
    )
