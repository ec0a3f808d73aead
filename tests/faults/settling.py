"""How a test ends with a run: it is judged, counted, and nothing may have been found."""

from collections.abc import Callable, Collection

from agentrl.types import Fate
from tests.faults.checker import Findings, judge
from tests.faults.lab import Lab
from tests.faults.results import add

__all__ = ["MakeLab", "settled"]

MakeLab = Callable[..., Lab]
#: A group that three deaths hit is not lost: it has that fate, and another takes its place.
_NAMED = {Fate.TRAINED, Fate.ENGINE_ERROR, Fate.ENV_ERROR}


def settled(
    one: Lab, promise: str, *, is_complete: bool = True, also: Collection[Fate] = ()
) -> Findings:
    """What the checker finds in a run that has ended; it must be nothing. `also`: fates that the
    faults of this test give."""
    findings = judge(one.folder, is_complete=is_complete)
    add(promise, one.num_faults, findings, is_complete=is_complete)
    assert not findings.lost, findings.lost
    assert not findings.twice, findings.twice
    assert not findings.problems, findings.problems
    assert findings.fates.keys() <= {*_NAMED, *also}, findings.fates
    return findings
