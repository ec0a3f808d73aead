"""Which corrections of old tokens may stand beside each other."""

from typing import Any

import pytest

from agentrl.config.corrections import about_corrections, notes_on_corrections
from agentrl.config.run import RunConfig
from agentrl.shipped import TRUST_REGIONS
from tests.unit.default_lines import refused, resolved

MASK: dict[str, Any] = {"tis_mode": "mask", "tis_clip_low": 0.5, "tis_clip": 5.0}


def told(*regions: str, **flags: Any) -> tuple[list[str], list[str]]:
    """What is refused and what is noted."""
    config = RunConfig(trust_region=list(regions), **flags)
    return list(about_corrections(config)), list(notes_on_corrections(config))


@pytest.mark.parametrize(
    ("regions", "flags"),
    [
        ((), {}),
        ((), MASK),
        (("negative",), {}),
        (("m2po",), {"use_tis": False}),
        (("dppo",), {"tis_clip": 5.0}),
        # slime's: --use-tis with --use-opsm; MIS of a weight, rejection and veto
        ((), {"use_opsm": True}),
        (("token:0.5:2", "veto"), {}),
        (("sequence", "veto:1e-5"), {"tis_level": "sequence"}),
        (("veto",), MASK),
        (("dppo:0.2", "veto"), {"use_rollout_logprobs": True}),
        # --preset vcpo
        ((), {"tis_level": "sequence", "tis_clip": 8.0, "scale_lr_by_ess": True}),
    ],
)
def test_what_papers_and_slime_combine_is_taken_without_a_word(
    regions: tuple[str, ...], flags: dict[str, Any]
) -> None:
    assert told(*regions, **flags) == ([], [])


@pytest.mark.parametrize(
    ("regions", "flags", "named"),
    [
        (("token:0.5:2", "geometric"), {}, "token:0.5:2, --trust-region geometric: "),
        (("negative", "dppo"), {}, "--trust-region negative, --trust-region dppo: "),
        (("m2po",), {"use_opsm": True}, "--trust-region m2po, --use-opsm: "),
    ],
)
def test_two_rules_of_a_kind_are_refused_by_their_flags(
    regions: tuple[str, ...], flags: dict[str, Any], named: str
) -> None:
    (line,), _ = told(*regions, **flags)
    assert named in line
    assert "keep one of them" in line


@pytest.mark.parametrize(
    ("regions", "flags", "named"),
    [
        (("token", "opsm"), {}, "--trust-region token, --trust-region opsm"),
        (("sequence",), MASK, "--tis-mode mask, --trust-region sequence"),
        (("dppo",), {"scale_lr_by_ess": True}, "--trust-region dppo, --scale-lr-by-ess"),
    ],
)
def test_rules_of_several_kinds_are_taken_with_one_note(
    regions: tuple[str, ...], flags: dict[str, Any], named: str
) -> None:
    refused, (note,) = told(*regions, **flags)
    assert refused == []
    assert note.startswith(f"{named}: ")


def test_everything_at_once_is_refused() -> None:
    refused, notes = told(*sorted(TRUST_REGIONS.places), scale_lr_by_ess=True, **MASK)
    assert len(refused) == 2
    assert notes == []


def test_a_rule_that_is_named_twice_is_not_told_here() -> None:
    assert told("opsm", use_opsm=True) == ([], [])


def test_every_trust_region_has_its_kind() -> None:
    for name in TRUST_REGIONS.places:
        other = "token" if name != "token" else "sequence"
        refused, notes = told(name, other)
        assert bool(refused or notes) is (name != "veto")


def test_a_loss_of_the_users_is_not_judged() -> None:
    assert told("token", "geometric", loss_type="custom_loss") == ([], [])


def test_a_run_is_refused_or_noted_before_it_starts() -> None:
    every = ["--trust-region", *sorted(TRUST_REGIONS.places), "--scale-lr-by-ess"]
    assert "each rejects by a band of pi_prox / mu" in refused(*every)
    notes = resolved("--trust-region", "token", "opsm").notes
    assert any(note.startswith("--trust-region token, --trust-region opsm: ") for note in notes)
