"""Columns: what a declaration may say, how they lie, and what a stream keeps of optional ones."""

from typing import Any

import msgspec
import numpy as np
import pytest

from agentrl.actors.cutting import cut_at_stop
from agentrl.actors.sampling import sample_turn
from agentrl.algorithms.base import Needs
from agentrl.algorithms.rows import TAKEN
from agentrl.columns import COLUMNS, TOKEN_BYTES, Column, dealt, split
from agentrl.errors import ConfigError, DataError, EngineError, TokenError
from agentrl.tokens import QwenFormat, TokenStream, Vocab
from agentrl.tokens.chat import Message
from agentrl.tokens.transcript import Transcript
from agentrl.types import Generation, TrajectoryMeta, TurnClient
from agentrl.wire.arrays import as_arrays
from tests.unit.played_episodes import ASSIGNMENT, CHAT

PAIRS = Column("pairs", "<u2", (2,), fill=7)
FLAGS = Column("flags", "|u1")


@pytest.fixture
def stream(qwen_vocab: Vocab) -> TokenStream:
    """A prompt of three tokens and a turn of two."""
    stream = TokenStream(qwen_vocab, openers=[[1]])
    stream.control([5, 6, 1])
    stream.prompt_ids()
    stream.sampled([11, 12], [-1.0, -1.0], [0, 0])
    return stream


# ---- declarations -------------------------------------------------------------------------------


@pytest.mark.parametrize("fill", [float("nan"), float("inf"), -float("inf")])
def test_a_fill_that_no_ledger_row_could_hold_is_refused_at_once(fill: float) -> None:
    with pytest.raises(ValueError, match=r"column teacher: its fill .* is not finite"):
        Column("teacher", "<f4", fill=fill)


@pytest.mark.parametrize(
    "told",
    [
        {"name": "a b"},
        {"name": ""},
        {"dtype": "<f2"},
        {"dtype": "O"},
        {"shape": [0]},
        {"shape": [2, -1]},
        {"fill": -1},
        {"fill": 0.5},
    ],
    ids=str,
)
def test_what_is_no_column_is_refused_wherever_it_is_read(told: dict[str, Any]) -> None:
    sound = {"name": "marks", "dtype": "<u2"}
    assert msgspec.convert(sound, Column) == Column("marks", "<u2")
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode(sound | told), type=Column)


@pytest.mark.parametrize("columns", [(FLAGS, FLAGS), (Column("turns", "|u1"),)], ids=str)
def test_a_trajectory_has_no_column_twice(columns: tuple[Column, ...]) -> None:
    with pytest.raises(ValueError, match="there twice"):
        TrajectoryMeta(1, 0, 0, 0.0, [], columns=columns)


@pytest.mark.parametrize("name", sorted(TAKEN))
def test_an_algorithm_needs_no_column_of_a_name_that_rows_have(name: str) -> None:
    with pytest.raises(ConfigError, match=f"rows have {name} already"):
        Needs(columns=(Column(name, "<f4"),))


# ---- how they lie -------------------------------------------------------------------------------


def test_columns_of_several_trajectories_are_found_again() -> None:
    plain, more = (*COLUMNS.values(),), (*COLUMNS.values(), PAIRS, FLAGS)
    first, second, cut = dealt([plain, more, more], range(5 + 7 + 6))
    assert list(first.values()) == [0, 1, 2, 3, 4]
    assert (second["tokens"], second["pairs"], second["flags"]) == (5, 10, 11)
    assert "flags" not in cut
    payload = bytes(range(2 * (TOKEN_BYTES + 4 + 1)))
    assert b"".join(split(more, payload).values()) == payload
    arrays = as_arrays(more, 2, split(more, payload))
    assert arrays["pairs"].tolist() == [[0x1F1E, 0x2120], [0x2322, 0x2524]]
    assert arrays["flags"].tolist() == [0x26, 0x27]
    with pytest.raises(ValueError, match="no whole number of tokens"):
        split(plain, payload)
    with pytest.raises(DataError, match="column pairs has 8 bytes, 3 tokens have 12"):
        as_arrays((PAIRS,), 3, split(more, payload))


# ---- a stream -----------------------------------------------------------------------------------


def test_the_newest_tokens_are_given_what_is_written_and_others_their_fill(
    stream: TokenStream,
) -> None:
    stream.write(PAIRS, np.array([[1, 2], [3, 4]], "<u2").tobytes())
    stream.untrusted("heard")
    stream.write(FLAGS, b"\1")
    columns = dict(zip((*COLUMNS, "pairs", "flags"), stream.columns(), strict=True))
    rest = len(stream) - 5
    assert columns["pairs"].tolist() == [7] * 6 + [1, 2, 3, 4] + [7, 7] * rest
    assert columns["flags"].tolist() == [0] * (4 + rest) + [1]
    assert stream.meta(0.0).columns == (PAIRS, FLAGS)


@pytest.mark.parametrize(
    ("column", "values", "said"),
    [
        (PAIRS, b"\0" * 6, "3 items of column pairs for 5 tokens"),
        (FLAGS, b"\0" * 6, "6 items of column flags for 5 tokens"),
        (Column("kinds", "|u1"), b"\1", "another column kinds"),
        (Column("pairs", "|u1"), b"\1", "another column pairs"),
    ],
)
def test_what_does_not_fit_a_stream_is_not_written(
    stream: TokenStream, column: Column, values: bytes, said: str
) -> None:
    stream.write(PAIRS, b"\1\0\1\0")
    before = stream.columns()
    with pytest.raises(TokenError, match=said):
        stream.write(column, values)
    assert stream.columns() == before


def test_a_transcript_that_goes_on_has_its_optional_columns(qwen_vocab: Vocab) -> None:
    chat = QwenFormat(qwen_vocab)
    first = Transcript(chat)
    first.open([Message("user", "Who?")])
    first.prompt_ids()
    first.sampled([11], [-1.0], [0])
    first.write(PAIRS, b"\1\0\2\0")
    again = Transcript(chat)
    again.restore(first.save(), first.optional)
    assert again.save() == first.save()
    assert again.metas(1.0) == first.metas(1.0)
    with pytest.raises(TokenError, match="6 columns for a transcript"):
        Transcript(chat).restore(first.save())
    with pytest.raises(TokenError, match=r"\['pairs'\] are not of"):
        Transcript(chat).restore([*first.save()[:5], b"\1\0"], first.optional)


# ---- a turn -------------------------------------------------------------------------------------


class Answers(TurnClient):
    """A client of one answer."""

    def __init__(self, generation: Generation) -> None:
        self.generation = generation

    async def generate(self, *_: Any, **__: Any) -> Generation:
        return self.generation


@pytest.mark.anyio
async def test_a_turn_whose_column_is_not_of_its_tokens_is_the_engines_failure() -> None:
    sound = Generation([1, 2], [0.0, 0.0], [0, 0], "stop", columns={PAIRS: b"\0" * 8})
    assert await sample_turn(Answers(sound), CHAT, ASSIGNMENT, [1], room=9, turn=3) == sound
    odd = msgspec.structs.replace(sound, columns={PAIRS: b"\0" * 4})
    with pytest.raises(EngineError, match="turn 3: column pairs is not of each of its tokens"):
        await sample_turn(Answers(odd), CHAT, ASSIGNMENT, [1], room=9, turn=3)


def test_a_turn_that_is_cut_at_a_stop_string_has_its_columns_cut() -> None:
    ids = CHAT.vocab.encode_untrusted("one two three")
    marks = np.arange(2 * len(ids), dtype="<u2").reshape(-1, 2)
    whole = Generation(ids, [0.0] * len(ids), [0] * len(ids), "stop", columns={PAIRS: marks})
    cut = cut_at_stop(CHAT, whole, ["two"])
    assert 0 < len(cut.output_ids) < len(ids)
    assert cut.columns[PAIRS] == marks[: len(cut.output_ids)].tobytes()
