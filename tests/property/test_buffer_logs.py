"""What the core of today makes of the events that earlier cores were told."""

import pytest

from tests.property.buffer_logs import difference, names, read

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", names())
def test_the_same_events_have_the_same_effects(name: str) -> None:
    found = difference(read(name))
    assert found is None, f"{found}\nevery log: python -m tests.property.buffer_logs"


def test_the_logs_hold_what_a_core_meets() -> None:
    """Every kind of event, restarts, and evaluations that end, are cut off, and hold a push."""
    lines = [line for name in names() for line in read(name).lines]
    effects = " ".join(effect for line in lines for effect in line.effects)
    assert {line.kind for line in lines} == {"start", "FromPeer", "Stored", "Tick"}
    assert sum(line.kind == "start" for line in lines) > 40
    for word in (
        "ScoreGroup",
        "Cancel",
        "PushGranted",
        "NewWeights",
        "DropSegments",
        "Refused",
        "ReadRows",
    ):
        assert f'{{"{word}": ' in effects, word
    for word in ('"evaluation"', '"stale"', '"lease_failed"', '"drained"', '"store": "buffer"'):
        assert word in effects, word
