"""What the papers say of each estimator, in NumPy: advantages, and the loss with its gradient by
the log-probability of every token. Written from the formulas; nothing of agentrl's is called.

A `Seq` (`paper_sequences.py`) is a trajectory segment under its labels; which of its tokens a trust
region keeps stands in `paper_regions.py`.
"""

from collections.abc import Callable, Sequence

import numpy as np

from tests.parity.paper_regions import REGIONS, kept_by_regions, m2po, of_level
from tests.parity.paper_sequences import Array, Flags, Seq

__all__ = [
    "ADVANTAGES",
    "OBJECTIVES",
    "REGIONS",
    "Array",
    "Seq",
    "advantages",
    "ess_share",
    "loss",
    "step_scale",
]

# ---- advantages ----------------------------------------------------------------------------------


def grpo(seq: Seq, flags: Flags) -> Array:
    """DeepSeekMath 4.1.2; Dr.GRPO without the standard deviation."""
    reward = seq.group[seq.index]
    if not flags.get("disable_rewards_normalization"):
        spread = float(np.std(seq.group, ddof=1))
        reward -= float(np.mean(seq.group))
        if not flags.get("disable_grpo_std_normalization"):
            reward /= spread + 1e-6
    return np.full(len(seq.mask), reward)


def rloo(seq: Seq, flags: Flags) -> Array:
    """Ahmadian et al., the leave-one-out estimator."""
    others = [reward for place, reward in enumerate(seq.group) if place != seq.index]
    return np.full(len(seq.mask), seq.group[seq.index] - sum(others) / len(others))


def _kl(seq: Seq, flags: Flags) -> Array:
    """beta times the KL of each trained token, k1, of the policy at the start of the iteration."""
    policy = seq.mu if flags.get("use_rollout_logprobs") else seq.prox
    return np.where(seq.mask, flags.get("kl_coef", 0.0) * (policy - seq.reference), 0.0)


def reinforce_plus_plus(seq: Seq, flags: Flags) -> Array:
    """Hu et al.: the reward at the end, less the KL from here on; with a discount as in slime."""
    places, gamma = np.flatnonzero(seq.sampled), flags.get("gamma", 1.0)
    kl, found = _kl(seq, flags), np.zeros(len(seq.mask))
    for order, t in enumerate(places):
        left = len(places) - 1 - order
        later = sum(gamma**k * kl[place] for k, place in enumerate(places[order:]))
        found[t] = gamma**left * seq.group[seq.index] - later
    return found


def reinforce_plus_plus_baseline(seq: Seq, flags: Flags) -> Array:
    """Hu et al.: against the mean of the group; the KL of each token as in slime."""
    return seq.group[seq.index] - np.mean(seq.group) - _kl(seq, flags)


def opob(seqs: Sequence[Seq]) -> None:
    """VCPO, section 3.3: the baseline of a group, of its episodes by their whole ratios. |s|^2 is
    the sum of (1 - pi)^2."""
    for name in {seq.name for seq in seqs}:
        group = [seq for seq in seqs if seq.name == name]
        above = below = 0.0
        for index in {seq.index for seq in group}:
            parts = [seq for seq in group if seq.index == index]
            ratio = np.prod([np.exp((seq.prox - seq.mu)[seq.mask]).prod() for seq in parts])
            norm = sum(((1 - np.exp(seq.prox)) ** 2)[seq.mask].sum() for seq in parts)
            above += ratio**2 * norm * parts[0].group[index]
            below += ratio**2 * norm
        for seq in group:
            distance = seq.group[seq.index] - (above / below if below else 0.0)
            spread = np.std(seq.group)
            advantage = distance / (spread + 1e-6) if spread else 0.0
            seq.advantage = np.full(len(seq.mask), advantage)


def ess_share(seqs: Sequence[Seq]) -> float:
    """VCPO: the effective sample size of whole ratios, of their number."""
    w = [np.exp((seq.prox - seq.mu)[seq.mask].sum()) for seq in seqs if seq.mask.any()]
    return float(sum(w) ** 2 / sum(each**2 for each in w) / len(w))


def step_scale(seqs: Sequence[Seq], reference: float) -> float:
    """VCPO: the square root of it, against the one of on-policy data, and never above 1."""
    return float(min(1.0, ess_share(seqs) / reference) ** 0.5)


def gae(seqs: Sequence[Seq], flags: Flags) -> None:
    """Schulman et al. 2015, the double sum as it stands: an action is a sampled token, time runs on
    through the segments of an episode, and the reward comes with the last one, or as `earned`."""
    gamma, lambd = flags.get("gamma", 1.0), flags.get("lambd", 1.0)
    for name, index in {(seq.name, seq.index) for seq in seqs}:
        parts = [seq for seq in seqs if (seq.name, seq.index) == (name, index)]
        parts.sort(key=lambda seq: seq.segment)
        for seq in parts:
            seq.advantage, seq.returns = np.zeros(len(seq.mask)), np.zeros(len(seq.mask))
        actions = [(seq, t) for seq in parts for t in np.flatnonzero(seq.sampled)]
        kl = {id(seq): _kl(seq, flags) for seq in parts}
        rewards = [-kl[id(seq)][t] for seq, t in actions]
        if parts[0].earned is None:
            rewards[-1] += parts[0].group[index]
        for place, (seq, t) in enumerate(actions):
            rewards[place] += 0.0 if seq.earned is None else seq.earned[t]
        values = [seq.values[t] for seq, t in actions] + [0.0]
        delta = [rewards[i] + gamma * values[i + 1] - values[i] for i in range(len(actions))]
        for i, (seq, t) in enumerate(actions):
            seq.advantage[t] = sum((gamma * lambd) ** k * d for k, d in enumerate(delta[i:]))
            seq.returns[t] = seq.advantage[t] + values[i]


def value_loss(seqs: Sequence[Seq], flags: Flags) -> tuple[float, list[Array], float]:
    """Of one step, its gradient by the values, and which share of tokens was clipped. The worse of
    two squared errors, of the value and of the value near the old one."""
    bound = flags.get("value_clip", 0.2)
    total, slopes, clipped, count = 0.0, [], 0, 0
    for seq, weight in zip(seqs, _weights(seqs, flags), strict=True):
        slope = np.zeros(len(seq.mask))
        for t in np.flatnonzero(seq.mask):
            now, old, target = seq.values_now[t], seq.values[t], seq.returns[t]
            near = min(max(now, old - bound), old + bound)
            plain, other = (now - target) ** 2, (near - target) ** 2
            total += weight[t] * max(plain, other)
            clipped, count = clipped + (other > plain), count + 1
            if plain >= other:
                slope[t] = weight[t] * 2 * (now - target)
        slopes.append(slope)
    return total, slopes, clipped / count


def explained_variance(seqs: Sequence[Seq]) -> float:
    """Over all trained tokens."""
    returns = np.concatenate([seq.returns[seq.mask] for seq in seqs])
    values = np.concatenate([seq.values[seq.mask] for seq in seqs])
    return float(1 - np.var(returns - values) / np.var(returns))


def distil(seqs: Sequence[Seq], flags: Flags) -> None:
    """On-policy distillation: the sampled reverse KL to the teacher, of the policy that the ratio
    is taken to, off the advantage of the token that was sampled."""
    for seq in seqs:
        policy = seq.mu if flags.get("use_rollout_logprobs") else seq.prox
        seq.advantage = seq.advantage - flags.get("opd_kl_coef", 1.0) * (policy - seq.teacher)


def _nothing(seq: Seq, flags: Flags) -> Array:
    """Of an estimator that looks at whole groups."""
    return np.zeros(len(seq.mask))


ADVANTAGES: dict[str, Callable[[Seq, Flags], Array]] = {
    "opob": _nothing,
    "ppo": _nothing,
    "grpo": grpo,
    "gspo": grpo,
    "cispo": grpo,
    "rloo": rloo,
    "reinforce_plus_plus": reinforce_plus_plus,
    "reinforce_plus_plus_baseline": reinforce_plus_plus_baseline,
}


def _kl_loss(seq: Seq, flags: Flags) -> tuple[Array, Array]:
    """k3 of Schulman and its slope; times pi / mu, DeepSeek-V3.2, equation 7."""
    gap = seq.now - seq.reference
    k3, slope = np.exp(-gap) - 1 + gap, 1 - np.exp(-gap)
    if flags.get("use_unbiased_kl"):
        ratio = np.exp(seq.now - seq.mu)
        k3, slope = ratio * k3, ratio * (slope + k3)
    return np.where(seq.mask, k3, 0.0), np.where(seq.mask, slope, 0.0)


def advantages(name: str, seqs: Sequence[Seq], flags: Flags) -> None:
    """Fill in `advantage` of all sequences of an iteration."""
    for seq in seqs:
        seq.advantage = ADVANTAGES[name](seq, flags)
    if name == "opob":
        opob(seqs)
    if name == "ppo":
        gae(seqs, flags)
    if flags.get("use_opd"):
        distil(seqs, flags)
    if flags.get("normalize_advantages"):
        trained = np.concatenate([seq.advantage[seq.mask] for seq in seqs])
        for seq in seqs:
            seq.advantage = (seq.advantage - np.mean(trained)) / np.std(trained, ddof=1)
    for text in flags.get("trust_region", []):
        if text.startswith("m2po:"):
            for seq, kept in zip(seqs, m2po(seqs, float(text[5:])), strict=True):
                seq.kept = kept


# ---- objectives: the value of each token, and the derivative of a weighted sum of them -----------

Objective = Callable[[Seq, Flags, Array], tuple[Array, Array]]


def _range(flags: Flags) -> tuple[float, float]:
    low = flags.get("eps_clip", 0.2)
    return 1 - low, 1 + flags.get("eps_clip_high", low)


def _base(seq: Seq, flags: Flags) -> Array:
    """What the ratio is taken to."""
    return seq.mu if flags.get("use_rollout_logprobs") else seq.prox


def ppo(seq: Seq, flags: Flags, scale: Array) -> tuple[Array, Array]:
    """PPO, equation 7; the dual clip of Ye et al., equation 5."""
    low, high = _range(flags)
    values, slopes = np.zeros(len(seq.mask)), np.zeros(len(seq.mask))
    for t in np.flatnonzero(seq.mask):
        ratio, a = np.exp(seq.now[t] - _base(seq, flags)[t]), seq.advantage[t]
        values[t], slopes[t] = min((ratio * a, ratio * a), (np.clip(ratio, low, high) * a, 0.0))
        if low <= ratio <= high:
            slopes[t] = ratio * a
        c = flags.get("eps_clip_c")
        if c is not None and a < 0 and values[t] < c * a:
            values[t], slopes[t] = c * a, 0.0
    return values, scale * slopes


def gspo(seq: Seq, flags: Flags, scale: Array) -> tuple[Array, Array]:
    """GSPO, equations 5 and 7: every token has the value of its sequence."""
    low, high = _range(flags)
    values, slopes = np.zeros(len(seq.mask)), np.zeros(len(seq.mask))
    length = seq.mask.sum()
    if not length:
        return values, slopes
    ratio = np.prod(np.exp(seq.now - _base(seq, flags))[seq.mask]) ** (1 / length)
    for t in np.flatnonzero(seq.mask):
        a = seq.advantage[t]
        values[t] = min(ratio * a, np.clip(ratio, low, high) * a)
        if values[t] == ratio * a:
            slopes[seq.mask] += scale[t] * a * ratio / length
    return values, slopes


def cispo(seq: Seq, flags: Flags, scale: Array) -> tuple[Array, Array]:
    """MiniMax-M1, equations 4 and 5."""
    weight = np.clip(np.exp(seq.now - _base(seq, flags)), *_range(flags)) * seq.advantage
    return seq.mask * weight * seq.now, scale * seq.mask * weight


OBJECTIVES: dict[str, Objective] = {"gspo": gspo, "cispo": cispo}


def loss(name: str, seqs: Sequence[Seq], flags: Flags) -> tuple[float, list[Array]]:
    """Of one step, and its gradient by the log-probabilities of each sequence. `seqs` are all of
    the step's; the flags say how tokens are averaged."""
    total, slopes = 0.0, []
    for seq, weight in zip(seqs, _weights(seqs, flags), strict=True):
        scale = weight * _mismatch(seq, flags) * kept_by_regions(seq, flags)
        values, slope = OBJECTIVES.get(name, ppo)(seq, flags, scale)
        kl, kl_slope = _kl_loss(seq, flags)
        coefficient = weight * flags.get("kl_loss_coef", 0.0)
        total += float((coefficient * kl - scale * values).sum())
        slopes.append(coefficient * kl_slope - slope)
    return total, slopes


def _weights(seqs: Sequence[Seq], flags: Flags) -> list[Array]:
    """What each token of a step counts for in its mean."""
    episodes = sum(1 / seq.episode_len * seq.sampled.sum() for seq in seqs)
    tokens = sum(seq.sampled.sum() for seq in seqs)
    found = []
    for seq in seqs:
        share = episodes * flags.get("loss_length", seq.episode_len)
        if flags.get("calculate_per_token_loss"):
            share = tokens
        found.append(np.where(seq.mask, 1 / share, 0.0))
    return found


def _mismatch(seq: Seq, flags: Flags) -> Array:
    """pi_prox / mu of a token, its sequence or the mean of this: between its bounds, or 0 beyond
    them (IcePop, equations 1 and 2)."""
    if flags.get("use_rollout_logprobs") or not flags.get("use_tis", True):
        return np.ones(len(seq.mask))
    low, high = flags.get("tis_clip_low", 0.0), flags.get("tis_clip", 2.0)
    ratio = of_level(flags.get("tis_level", "token"), np.exp(seq.prox - seq.mu), seq.mask)
    if flags.get("tis_mode") == "mask":
        ratio = np.where((low <= ratio) & (ratio <= high), ratio, 0.0)
    return np.where(seq.mask, np.clip(ratio, low, high) * (ratio > 0), 0.0)
