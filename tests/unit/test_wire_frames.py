"""frames: what is refused, and how it is said."""

import array
import struct

import msgspec
import numpy as np
import pytest

from agentrl.errors import FrameError, ProtocolVersionError
from agentrl.types import EpisodeId, EpisodeReport, Outcome, StopReason, Task, TrajectoryMeta
from agentrl.wire import frames as frames_module
from agentrl.wire.frames import PROTOCOL_VERSION, Remains, decode, encode, salvage
from agentrl.wire.messages import Ack, Drain, Envelope, Finished, GroupScore, Heartbeat, Tasks

FINISHED = Envelope(
    3,
    7,
    Finished(
        EpisodeReport(
            EpisodeId("g1", 2),
            Outcome.DONE,
            StopReason.TERMINATED,
            [TrajectoryMeta(4, 2, 1, 0.5, [(1, 2)])],
        )
    ),
)


def test_a_message_with_columns_of_every_item_type_comes_back() -> None:
    tokens = np.arange(6, dtype="<i4").reshape(2, 3)
    logprobs = array.array("f", [0.5, -1.0])
    empty = np.zeros((0,), dtype="<f4")

    envelope, columns = decode(encode(FINISHED, [tokens, logprobs, b"", empty]))

    assert envelope == FINISHED
    assert [bytes(column) for column in columns] == [
        tokens.tobytes(),
        logprobs.tobytes(),
        b"",
        b"",
    ]


def test_columns_are_views_of_the_callers_memory() -> None:
    tokens = np.arange(100, dtype="<i4")
    frame = encode(FINISHED, [tokens])[2]
    assert np.shares_memory(np.frombuffer(frame, dtype="<i4"), tokens)
    assert np.shares_memory(
        np.frombuffer(decode(encode(FINISHED, [tokens]))[1][0], dtype="<i4"), tokens
    )


def test_a_column_boundary_that_moves_is_noticed_although_the_bytes_are_the_same() -> None:
    prelude, header, *_ = encode(FINISHED, [b"abcd", b"efgh"])
    with pytest.raises(FrameError, match="damaged"):
        decode([prelude, header, b"abc", b"defgh"])


def test_another_protocol_version_is_named_with_ours() -> None:
    prelude, *rest = encode(FINISHED)
    other = bytes(prelude[:4]) + struct.pack("<H", PROTOCOL_VERSION + 41) + b"a new layout"
    with pytest.raises(
        ProtocolVersionError, match=rf"version {PROTOCOL_VERSION + 41}.* {PROTOCOL_VERSION}:"
    ):
        decode([other, *rest])


@pytest.mark.parametrize(
    "damaged",
    [
        [],
        [b""],
        [b"GET / HTTP/1.1\r\n\r\n"],
        encode(FINISHED)[:1],
        encode(FINISHED, [b"x"])[:2],
        [*encode(FINISHED), b"one more"],
        [bytes(encode(FINISHED)[0]) + b"\0", *encode(FINISHED)[1:]],
        [bytes(encode(FINISHED)[0])[:-1], *encode(FINISHED)[1:]],
    ],
)
def test_wrong_layouts_are_refused(damaged: list[bytes | memoryview]) -> None:
    with pytest.raises(FrameError):
        decode(damaged)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode([1, 1, {"t": "no such message"}]),
        msgspec.msgpack.encode([1, 1, {"t": "ack", "seqs": ["one"]}]),
        msgspec.msgpack.encode([1, 1]),
        msgspec.msgpack.encode([1, 1, {"t": "beat"}]) + b"tail",
        b"\x93\x01\x01\x82\xa1t\xa5drain\xa6reason\xa2\xff\xfe",  # not UTF-8
        b"\x93\x01\x01\x82\xa1t\xa5event\xa4data\x81\xa1k" + b"\x91" * 100_000 + b"\xc0",
        b"\x93\x01\x01\x82\xa1t\xa3ack\xa4seqs\xdd\xff\xff\xff\xff",  # claims 4 G items
        b"\x93\x01\x01\x82\xa1t\xa5drain\xa6reason\xdb\xff\xff\xff\xff",  # claims 4 GiB
    ],
    ids=range(10),
)
def test_a_well_sealed_header_that_is_no_envelope_is_refused(header: bytes) -> None:
    with pytest.raises(FrameError):
        decode(sealed(header))


def test_too_large_a_message_is_refused_before_it_is_sent() -> None:
    with pytest.raises(FrameError, match=r"Finished has .* over the limit of 1000"):
        encode(FINISHED, [bytes(1000)], max_bytes=1000)
    assert encode(FINISHED, [bytes(500)], max_bytes=1000)


@pytest.mark.parametrize(
    "envelope",
    [
        Envelope(1, 1, Tasks([Task("t", {"row": object()})], 1)),
        Envelope(1, 1, Ack([2**70])),
        Envelope(1, 1, Drain("\ud800")),
    ],
)
def test_what_cannot_be_encoded_is_refused_by_message_name(envelope: Envelope) -> None:
    with pytest.raises(FrameError, match=type(envelope.body).__name__):
        encode(envelope)


def test_a_column_that_is_not_contiguous_is_refused() -> None:
    with pytest.raises(FrameError, match="Heartbeat"):
        encode(Envelope(1, 1, Heartbeat()), [np.arange(10)[::2]])


def sealed(header: bytes) -> list[bytes]:
    """Frames of a hostile peer: any header under a right prelude."""
    facts = frames_module._FACTS.pack(frames_module._MAGIC, PROTOCOL_VERSION, 0, 0, len(header), 0)
    checksum = frames_module._checksum(facts, header, [])
    return [facts + struct.pack("<Q", checksum), header]


# ---- what is left of a message that cannot be read -----------------------------------------------


def unreadable(message: object) -> Envelope:
    return Envelope(3, 7, message)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("message", "remains"),
    [
        (GroupScore("00000001", rewards="none"), Remains(3, 7, group="00000001")),  # type: ignore[arg-type]
        (GroupScore(5), Remains(3, 7)),  # type: ignore[arg-type]
        (
            Finished(msgspec.structs.replace(FINISHED.body.report, reward="high")),  # type: ignore[union-attr]
            Remains(3, 7, episode=EpisodeId("g1", 2)),
        ),
        (Finished("lost"), Remains(3, 7)),  # type: ignore[arg-type]
        ({"t": "of the future"}, Remains(3, 7)),
        (5, Remains(3, 7)),
    ],
)
def test_the_sender_and_the_subject_of_an_unreadable_message_are_salvaged(
    message: object, remains: Remains
) -> None:
    frames = encode(unreadable(message))
    with pytest.raises(FrameError, match="not an Envelope"):
        decode(frames)
    assert salvage(frames) == remains


def test_nothing_is_salvaged_from_a_damaged_frame_or_another_header() -> None:
    prelude, header, *_ = encode(FINISHED)
    assert salvage([prelude, bytes(header)[:-1] + b"\0"]) is None
    assert salvage([b"junk"]) is None
    assert salvage([]) is None
    assert salvage(encode(Envelope("x", 1, Heartbeat()))) is None  # type: ignore[arg-type]
