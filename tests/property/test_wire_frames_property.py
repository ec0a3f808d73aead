"""frames under Hypothesis: every message comes back, no damage does."""

import random
import struct

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.errors import FrameError
from agentrl.types import EpisodeId, EpisodeReport, Outcome, StopReason, Task, TrajectoryMeta
from agentrl.wire import frames as frames_module
from agentrl.wire import messages
from agentrl.wire.frames import decode, encode
from agentrl.wire.messages import Drain, Envelope, Event, Finished, GroupScore, Tasks

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
FLOAT = st.floats(allow_nan=False)
SEED = st.integers(0, 2**32)
COUNT = st.integers(0, 2**63 - 1)
JSON = st.recursive(
    st.none() | st.booleans() | COUNT | FLOAT | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
ROW = st.dictionaries(TEXT, JSON, max_size=3)
TRAJECTORY = st.builds(
    TrajectoryMeta, COUNT, COUNT, COUNT, FLOAT, st.lists(st.tuples(COUNT, COUNT), max_size=3)
)
MESSAGES = st.one_of(
    st.builds(messages.Hello, st.sampled_from(["worker", "learner", "driver"]), TEXT, TEXT),
    st.just(messages.Heartbeat()),
    st.builds(messages.Capacity, COUNT),
    st.builds(GroupScore, TEXT, st.lists(FLOAT, max_size=5), st.booleans(), TEXT),
    st.builds(Tasks, st.lists(st.builds(Task, TEXT, ROW), max_size=3), COUNT, st.booleans()),
    st.builds(messages.Ack, st.lists(COUNT, max_size=20)),
    st.builds(messages.Refused, TEXT, COUNT, st.booleans()),
    st.builds(messages.Cancel, st.lists(st.builds(EpisodeId, TEXT, COUNT, COUNT), max_size=5)),
    st.builds(Event, TEXT, ROW),
    st.builds(messages.Welcome, COUNT, FLOAT),
    st.builds(
        Finished,
        st.builds(
            EpisodeReport,
            st.builds(EpisodeId, TEXT, COUNT, COUNT),
            st.sampled_from(Outcome),
            st.sampled_from(StopReason),
            st.lists(TRAJECTORY, max_size=3),
            FLOAT,
        ),
    ),
)
ENVELOPES = st.builds(Envelope, COUNT, COUNT, MESSAGES)
COLUMNS = st.lists(st.binary(max_size=64), max_size=6)


@given(ENVELOPES, COLUMNS)
def test_every_message_comes_back_as_it_went(envelope: Envelope, columns: list[bytes]) -> None:
    decoded, views = decode(encode(envelope, columns))
    assert decoded == envelope
    assert [bytes(view) for view in views] == columns


@given(st.lists(st.binary(max_size=100), max_size=5))
def test_random_bytes_are_refused(frames: list[bytes]) -> None:
    assert refused_or_none(frames) is None


@settings(max_examples=200)
@given(ENVELOPES, COLUMNS, SEED)
def test_damage_is_refused_or_harmless(envelope: Envelope, columns: list[bytes], seed: int) -> None:
    rng = random.Random(seed)
    original = [bytes(frame) for frame in encode(envelope, columns)]
    for _ in range(100):
        damaged = mutate(original, rng)
        decoded = refused_or_none(damaged)
        assert decoded is None or (damaged == original and decoded[0] == envelope)


@settings(max_examples=200)
@given(ENVELOPES, SEED)
def test_a_hostile_header_under_a_right_checksum_is_an_envelope_or_refused(
    envelope: Envelope, seed: int
) -> None:
    rng = random.Random(seed)
    header = bytes(encode(envelope)[1])
    for _ in range(50):
        decoded = refused_or_none(sealed(b"".join(mutate([header], rng))))
        assert decoded is None or isinstance(decoded[0], Envelope)


def test_text_and_nesting_in_a_sealed_header_never_escape_the_frame_error() -> None:
    rng = random.Random(5)
    base = Envelope(1, 2, Event("kind", {"text": "näïve ☃", "deep": [[[[1.5]]]], "n": {"a": None}}))
    headers = [msgspec.msgpack.encode(base), msgspec.msgpack.encode(Envelope(1, 2, Drain("ä" * 9)))]
    for _ in range(10_000):
        header = bytearray(rng.choice(headers))
        for _ in range(rng.randint(1, 4)):
            header[rng.randrange(len(header))] = rng.randrange(256)
        refused_or_none(sealed(bytes(header)))


def refused_or_none(frames: list[bytes]) -> tuple[Envelope, list[memoryview]] | None:
    try:
        return decode(frames)
    except FrameError:
        return None


def mutate(frames: list[bytes], rng: random.Random) -> list[bytes]:
    """Flip, cut, add, drop, duplicate or swap: one to three times."""
    changed = list(frames)
    for _ in range(rng.randint(1, 3)):
        if not changed:
            return changed
        at = rng.randrange(len(changed))
        frame = bytearray(changed[at])
        match rng.randrange(6):
            case 0 | 1 if frame:
                frame[rng.randrange(len(frame))] ^= 1 << rng.randrange(8)
                changed[at] = bytes(frame)
            case 2:
                changed[at] = bytes(frame[: rng.randint(0, len(frame))])
            case 3:
                changed[at] = bytes(frame) + rng.randbytes(rng.randint(1, 4))
            case 4:
                changed.pop(at)
            case _:
                other = rng.randrange(len(changed))
                changed[at], changed[other] = changed[other], changed[at]
    return changed


def sealed(header: bytes) -> list[bytes]:
    """Frames of a hostile peer: any header under a right prelude."""
    facts = frames_module._FACTS.pack(
        frames_module._MAGIC, frames_module.PROTOCOL_VERSION, 0, 0, len(header), 0
    )
    checksum = frames_module._checksum(facts, header, [])
    return [facts + struct.pack("<Q", checksum), header]
