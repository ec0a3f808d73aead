"""Which corrections of old tokens may stand beside each other.

    weight      --use-tis, of a token, a sequence or a geometric mean: one by its flags
    rejection   --trust-region token, sequence, geometric: a band of pi_prox / mu
    direction   --trust-region negative, dppo, dppo-kl, m2po, opsm and --use-opsm: tokens that moved
                as their advantage says
    veto        --trust-region veto: beside anything

Two of a kind judge the same thing by two bounds: refused. Of two kinds more is dropped than in any
paper: noted. Papers and slime combine a weight with one kind, and with `veto`.
"""

from collections.abc import Iterator

from agentrl.config.conditions import CONDITIONS
from agentrl.config.run import RunConfig

__all__ = ["about_corrections", "holds_old_tokens", "notes_on_corrections"]

_BANDS = frozenset({"token", "sequence", "geometric"})
_HELD = frozenset({"negative", "dppo"})
#: The one that needs no company.
_VETO = "veto"


def about_corrections(config: RunConfig) -> Iterator[str]:
    """A line for each kind of which there are two."""
    bands, directed = _rules(config)
    for rules, what in (
        (bands, "each rejects by a band of pi_prox / mu"),
        (directed, "each drops tokens that have moved as their advantage says"),
    ):
        if len(rules) > 1:
            yield (
                f"{', '.join(rules.values())}: {what}, and what one keeps the next would drop; "
                "keep one of them (--trust-region veto may stand beside it)"
            )


def notes_on_corrections(config: RunConfig) -> Iterator[str]:
    """One note where several kinds are at work."""
    bands, directed = _rules(config)
    if len(bands) > 1 or len(directed) > 1:  # refused
        return
    masks = ["--tis-mode mask"] if config.tis_mode == "mask" and _holds(config, "tis") else []
    named = [*masks, *bands.values(), *directed.values()]
    if named and config.scale_lr_by_ess and _holds(config, "prox_ratio"):
        named.append("--scale-lr-by-ess")
    if len(named) > 1:
        yield (
            f"{', '.join(named)}: each corrects for the distance of policy and engine, and their "
            "effects add up; train/dropped and train/tis_clipfrac say what is left, and one of "
            "them is enough as a rule"
        )


def holds_old_tokens(config: RunConfig) -> bool:
    """Whether a correction is on that held up a run of tokens that were all 8 iterations old
    (docs/results/staleness.md); the weight of each token alone did not."""
    of_sequences = _holds(config, "tis") and config.tis_level == "sequence"
    return of_sequences or not _HELD.isdisjoint(_rules(config)[1])


def _rules(config: RunConfig) -> tuple[dict[str, str], dict[str, str]]:
    """The bands, and the rules of a direction, by name: how each was given."""
    bands: dict[str, str] = {}
    directed: dict[str, str] = {}
    if not _holds(config, "policy_loss"):
        return bands, directed
    given = {text.partition(":")[0]: f"--trust-region {text}" for text in config.trust_region}
    if config.use_opsm:
        given.setdefault("opsm", "--use-opsm")
    for name, flag in given.items():
        if name != _VETO:
            (bands if name in _BANDS else directed)[name] = flag
    return bands, directed


def _holds(config: RunConfig, condition: str) -> bool:
    return CONDITIONS[condition].holds(config)
