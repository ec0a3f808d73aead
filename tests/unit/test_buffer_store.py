"""Payloads: columns that agree with their report, and the segments that hold them."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from agentrl.buffer.payloads import defect
from agentrl.buffer.store import PayloadStore
from agentrl.columns import COLUMNS, TOKEN_BYTES, split
from agentrl.errors import StoreError
from agentrl.types import EpisodeId, EpisodeReport, Outcome, StopReason, TrajectoryMeta

Columns = list[memoryview]


def columns(kinds: list[int], versions: list[int], logprob: float = -0.5) -> Columns:
    size = len(kinds)
    values = {
        "tokens": np.arange(size),
        "kinds": np.array(kinds),
        "logprobs": np.full(size, logprob),
        "versions": np.array(versions),
        "turns": np.zeros(size),
    }
    return [memoryview(values[n].astype(c.dtype).tobytes()) for n, c in COLUMNS.items()]


def report(**meta: object) -> EpisodeReport:
    facts: dict[str, object] = {"num_tokens": 3, "num_sampled": 2, "num_turns": 1, "reward": 0.0}
    facts |= {"versions": [(1, 1), (2, 1)]} | meta
    trajectory = msgspec.convert(facts, TrajectoryMeta)
    return EpisodeReport(EpisodeId("1", 0), Outcome.DONE, StopReason.TERMINATED, [trajectory])


GOOD = ([0, 1, 1], [-1, 1, 2])


def test_columns_that_agree_with_their_report_have_no_defect() -> None:
    assert defect(report(), columns(*GOOD)) is None


@pytest.mark.parametrize(
    ("facts", "found", "reason"),
    [
        ({}, columns(*GOOD)[:4], "4 columns came"),
        ({"num_tokens": 4}, columns(*GOOD), "column tokens has 12 bytes, 4 tokens have 16"),
        ({"versions": [(1, 1)]}, columns(*GOOD), "its versions count 1 tokens, 2 were sampled"),
        ({"versions": [(2, 1), (1, 1)]}, columns(*GOOD), "not in rising order"),
        ({}, columns([0, 1, 2], [-1, 1, 2]), "1 tokens are sampled, the report says 2"),
        ({}, columns([0, 1, 1], [-1, 1, 1]), "its sampled tokens are of versions [(1, 2)]"),
        ({}, columns([9, 1, 1], [-1, 1, 2]), "no span kind"),
        ({}, columns(*GOOD, logprob=float("nan")), "a logprob is not finite"),
        ({"reward": float("inf")}, columns(*GOOD), "its reward is inf"),
    ],
)
def test_every_contradiction_is_named(
    facts: dict[str, object], found: Columns, reason: str
) -> None:
    assert reason in str(defect(report(**facts), found))


def test_a_done_report_without_a_trajectory_is_a_defect() -> None:
    empty = EpisodeReport(EpisodeId("1", 0), Outcome.DONE, StopReason.TERMINATED, [])
    assert "no trajectory" in str(defect(empty, []))


def test_columns_are_found_again_in_a_payload_by_its_length_alone() -> None:
    whole = columns(*GOOD)
    payload = b"".join(whole)
    assert len(payload) == 3 * TOKEN_BYTES
    assert list(split(tuple(COLUMNS.values()), payload).values()) == whole
    with pytest.raises(ValueError, match="no whole number of tokens"):
        split(tuple(COLUMNS.values()), payload[:-1])


# ---- segments -----------------------------------------------------------------------------------


def test_a_payload_is_read_back_as_it_was_stored(tmp_path: Path) -> None:
    with PayloadStore(tmp_path, segment_bytes=100, first=1) as store:
        refs = [store.append([bytes([i]) * 30, b"x" * 30]) for i in range(5)]
        store.sync()
        assert [ref.segment for ref in refs] == [1, 1, 2, 2, 3]
        assert [store.read(ref)[0] for ref in refs] == [0, 1, 2, 3, 4]


def test_a_flipped_bit_loses_only_the_payload_it_hit(tmp_path: Path) -> None:
    with PayloadStore(tmp_path, segment_bytes=100, first=1) as store:
        first, second = store.append([b"a" * 20]), store.append([b"b" * 20])
        store.sync()
        path = tmp_path / "00000001.seg"
        data = bytearray(path.read_bytes())
        data[5] ^= 1
        path.write_bytes(data)
        with pytest.raises(StoreError, match="damaged"):
            store.read(first)
        assert store.read(second) == b"b" * 20


def test_a_reference_beyond_the_segment_is_refused(tmp_path: Path) -> None:
    with PayloadStore(tmp_path, segment_bytes=100, first=1) as store:
        ref = store.append([b"a" * 20])
        store.sync()
        with pytest.raises(StoreError, match="has 20 bytes"):
            store.read(msgspec.structs.replace(ref, num_bytes=2**60))
        with pytest.raises(StoreError, match="asked of store"):
            store.read(msgspec.structs.replace(ref, store="other"))


def test_a_restarted_store_writes_to_a_new_segment(tmp_path: Path) -> None:
    for expected in (1, 2):
        with PayloadStore(tmp_path, segment_bytes=100, first=1) as store:
            assert store.append([b"a"]).segment == expected


def test_dropping_the_open_segment_closes_it_and_goes_on(tmp_path: Path) -> None:
    with PayloadStore(tmp_path, segment_bytes=100, first=1) as store:
        store.drop([store.append([b"a"]).segment])
        assert store.numbers() == []
        assert store.append([b"b"]).segment == 2
