"""Hostile checkpoints run nothing and open nothing: they are read as what they say, or refused."""

import re
from contextlib import suppress
from itertools import combinations
from math import prod
from pathlib import Path

import pytest

from agentrl.config.torch_dist import Header, folder_of, read_header
from agentrl.errors import ConfigError
from agentrl.learner.megatron.boxes import overlap
from tests.security.hostile_checkpoints import CANARY, CASES, KEY, whole_checkpoint
from tests.slices import of_the_day


def test_the_checkpoint_that_all_cases_spoil_is_read(tmp_path: Path) -> None:
    folder = whole_checkpoint(tmp_path / "kept")
    header = read_header(tmp_path / "kept")
    assert folder_of(tmp_path / "kept") == folder
    assert header.tensors[KEY].shape == (4, 3)
    assert len(CASES) == 1000


@pytest.mark.parametrize("name", of_the_day(list(CASES), 12))
def test_a_hostile_checkpoint_is_refused_or_says_what_can_be(name: str, tmp_path: Path) -> None:
    folder = whole_checkpoint(tmp_path / "kept")
    CASES[name](folder)
    with suppress(ConfigError):
        assert_possible(read_header(tmp_path / "kept"), folder)
    assert not CANARY.exists()


def test_boxes_that_overlap_and_leave_a_gap_are_refused(tmp_path: Path) -> None:
    folder = whole_checkpoint(tmp_path / "kept")
    CASES["header-twice"](folder)
    with pytest.raises(ConfigError, match=re.escape(f"the boxes of {KEY} do not make up")):
        read_header(tmp_path / "kept")


def assert_possible(header: Header, folder: Path) -> None:
    """No tensor lies outside its file, nor a file outside the folder; each number of a tensor is in
    one box."""
    for whole in header.tensors.values():
        assert sum(prod(chunk.sizes) for chunk in whole.chunks) == prod(whole.shape)
        for one, other in combinations(whole.chunks, 2):
            assert overlap((one.offset, one.sizes), (other.offset, other.sizes)) is None
        for chunk in whole.chunks:
            path = folder / chunk.file
            assert (path.parent, path.is_file()) == (folder, True)
            assert chunk.start + chunk.num_bytes <= path.stat().st_size
