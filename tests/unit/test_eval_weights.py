"""Which weights are written for evaluations that are apart, and which are found."""

from pathlib import Path

import pytest

from agentrl.eval_weights import EvalWeights, EvalWeightsDue, folder_of, remove, written
from agentrl.types import VersionRow


@pytest.mark.parametrize("first", [False, True])
def test_the_first_weights_after_each_interval_are_due(first: bool) -> None:
    is_due = EvalWeightsDue(4, first)
    published = [0, 3, 6, 7, 8, 12]
    due = [
        now
        for before, now in zip([None, *published], published, strict=False)
        if is_due(before, now)
    ]
    assert due == [*([0] if first else []), 6, 8, 12]


def test_weights_are_found_by_version_once_they_are_whole(tmp_path: Path) -> None:
    assert written(tmp_path / "evaluated") == []
    root = tmp_path / "evaluated"
    for version, iteration in ((10, 20), (2, 4)):
        folder_of(root, VersionRow(version, None, iteration)).mkdir(parents=True)
    (root / ".version_0000011_iteration_0000022.ab12").mkdir()
    found = written(root)
    assert [(w.version, w.iteration) for w in found] == [(2, 4), (10, 20)]
    remove(found[0])
    assert written(root) == [EvalWeights(10, 20, root / "version_0000010_iteration_0000020")]
