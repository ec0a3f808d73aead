"""What the papers say of each trust region: which tokens of a segment are kept. Written from the
formulas; nothing of agentrl's is called."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from tests.parity.paper_sequences import Array, Flags, Seq


def of_level(level: str, ratio: Array, mask: npt.NDArray[np.bool_]) -> Array:
    if level == "token" or not mask.any():
        return ratio
    product = np.prod(ratio[mask])
    return np.full(len(mask), product if level == "sequence" else product ** (1 / mask.sum()))


Kept = npt.NDArray[np.bool_]


def _band(level: str) -> Callable[..., Kept]:
    """Rejection, Liu et al.: outside of a band of pi_prox / mu."""

    def kept(seq: Seq, start: Array, low: float, high: float) -> Kept:
        ratio = of_level(level, np.exp(start - seq.mu), seq.mask)
        return ~((ratio < low) | (ratio > high))

    return kept


def _veto(seq: Seq, start: Array, low: float) -> Kept:
    return np.full(len(seq.mask), not (np.exp(start - seq.mu)[seq.mask] < low).any())


def _opsm(seq: Seq, start: Array, delta: float) -> Kept:
    """DeepSeek-V3.2, equation 9."""
    kl = np.mean((seq.mu - seq.now)[seq.mask]) if seq.mask.any() else 0.0
    return ~((seq.advantage < 0) & (kl > delta))


def _dppo(seq: Seq, start: Array, delta: float) -> Kept:
    """DPPO, equations 12 and 13."""
    ratio, far = np.exp(seq.now - seq.mu), np.abs(np.exp(seq.mu) - np.exp(seq.now)) > delta
    up, down = (seq.advantage > 0) & (ratio > 1), (seq.advantage < 0) & (ratio < 1)
    dropped: Kept = (up | down) & far
    return ~dropped


def _dppo_kl(seq: Seq, start: Array, delta: float) -> Kept:
    """DPPO, equations 12 and 14."""
    mu, pi = np.exp(seq.mu), np.exp(seq.now)
    with np.errstate(all="ignore"):
        kl = mu * np.log(mu / pi) + (1 - mu) * np.log((1 - mu) / (1 - pi))
    up, down = (seq.advantage > 0) & (pi > mu), (seq.advantage < 0) & (pi < mu)
    dropped: Kept = (up | down) & (kl > delta)
    return ~dropped


def _negative(seq: Seq, start: Array, low: float) -> Kept:
    return ~((seq.advantage < 0) & (np.exp(seq.now - seq.mu) < low))


REGIONS: dict[str, Callable[..., Kept]] = {
    **{level: _band(level) for level in ("token", "sequence", "geometric")},
    "veto": _veto,
    "opsm": _opsm,
    "dppo": _dppo,
    "dppo-kl": _dppo_kl,
    "negative": _negative,
}


def m2po(seqs: Sequence[Seq], tau: float) -> list[Kept]:
    """M2PO, algorithm 1, word for word, over all sequences of an iteration."""
    inside = []
    for place, seq in enumerate(seqs):
        gap = seq.prox - seq.mu
        towards = ((seq.advantage > 0) & (gap > 0)) | ((seq.advantage < 0) & (gap < 0))
        inside += [(gap[t] ** 2, place, t) for t in np.flatnonzero(seq.mask & towards)]
    kept = [np.ones(len(seq.mask), dtype=bool) for seq in seqs]
    while inside and np.mean([square for square, _, _ in inside]) > tau:
        worst = max(inside)
        inside.remove(worst)
        kept[worst[1]][worst[2]] = False
    return kept


def kept_by_regions(seq: Seq, flags: Flags) -> Kept:
    start = seq.now if flags.get("use_rollout_logprobs") else seq.prox
    found = np.ones(len(seq.mask), dtype=bool) if seq.kept is None else seq.kept.copy()
    for text in flags.get("trust_region", []):
        name, *bounds = text.split(":")
        if name != "m2po":
            found &= REGIONS[name](seq, start, *map(float, bounds))
    return found
