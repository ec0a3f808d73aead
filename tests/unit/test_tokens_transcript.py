"""An episode in segments: what is sampled stands once, what is remembered is not trained."""

from collections import Counter

import pytest

from agentrl.columns import COLUMNS, most_bytes
from agentrl.errors import TokenError
from agentrl.tokens import Message, Vocab
from agentrl.tokens.formats.qwen3 import Qwen3Format
from agentrl.tokens.formats.qwen3_stripped import StrippedQwen3Format
from agentrl.tokens.transcript import Transcript
from agentrl.types import SpanKind

KINDS = list(COLUMNS).index("kinds")
MAX_CONTEXT = 1000


def said(transcript: Transcript, vocab: Vocab, words: str, version: int = 0) -> None:
    ids = vocab.encode_trusted(f"<think>\nabout {words}\n</think>\n\n{words}<|im_end|>")
    transcript.prompt_ids()
    transcript.sampled(ids, [-0.5] * len(ids), [version] * len(ids))


def begun(chat: Qwen3Format) -> Transcript:
    transcript = Transcript(chat)
    transcript.open([Message.user("Why?")])
    return transcript


def test_a_format_that_keeps_all_has_one_segment(qwen_vocab: Vocab) -> None:
    transcript = begun(Qwen3Format(qwen_vocab))
    for words in ("one", "two"):
        said(transcript, qwen_vocab, words)
        before = len(transcript)
        transcript.observe([Message.user("and?")], MAX_CONTEXT)
        assert len(transcript) > before
    (meta,) = transcript.metas(1.0)
    assert (meta.num_turns, meta.segment) == (2, 0)


def test_a_user_message_begins_a_segment_and_each_sampled_token_is_in_one(
    qwen_vocab: Vocab,
) -> None:
    transcript = begun(StrippedQwen3Format(qwen_vocab))
    num_sampled = 0
    for version, words in enumerate(["one", "two", "three"]):
        said(transcript, qwen_vocab, words, version)
        num_sampled += len(transcript.turn_ids())
        transcript.observe([Message.tool("fact")], MAX_CONTEXT)
        said(transcript, qwen_vocab, words, version)
        num_sampled += len(transcript.turn_ids())
        transcript.observe([Message.user("and?")], MAX_CONTEXT)
    prompt = qwen_vocab.decode(transcript.prompt_ids())
    assert "about" not in prompt
    assert [prompt.count(word) for word in ("one", "two", "three", "fact")] == [2, 2, 2, 3]
    metas = transcript.metas(2.5)
    assert [(m.segment, m.num_turns, m.reward) for m in metas] == [
        (0, 2, 2.5),
        (1, 2, 2.5),
        (2, 2, 2.5),
    ]
    assert [meta.versions for meta in metas] == [
        [(version, metas[version].num_sampled)] for version in range(3)
    ]
    assert (transcript.num_turns, transcript.num_sampled) == (6, num_sampled)
    columns = transcript.columns()
    assert len(columns) == 3 * len(COLUMNS)
    kinds = Counter[int]()
    for segment in range(3):
        kinds.update(columns[segment * len(COLUMNS) + KINDS])
    assert kinds[SpanKind.SAMPLED] == num_sampled


def test_a_segment_in_which_nothing_was_sampled_is_left_out(qwen_vocab: Vocab) -> None:
    transcript = begun(StrippedQwen3Format(qwen_vocab))
    said(transcript, qwen_vocab, "one")
    transcript.observe([Message.user("and?")], MAX_CONTEXT)
    assert [meta.segment for meta in transcript.metas(0.0)] == [0]
    assert len(transcript.columns()) == len(COLUMNS)


@pytest.mark.parametrize("made", [Qwen3Format, StrippedQwen3Format])
def test_an_answer_that_does_not_fit_the_context_is_not_kept(
    qwen_vocab: Vocab, made: type[Qwen3Format]
) -> None:
    transcript = begun(made(qwen_vocab))
    said(transcript, qwen_vocab, "one")
    before = transcript.save()
    assert not transcript.observe([Message.user("word " * MAX_CONTEXT)], MAX_CONTEXT)
    assert transcript.save() == before
    transcript.observe([Message.user("and?")], MAX_CONTEXT)
    most = len(transcript)
    again = begun(made(qwen_vocab))
    said(again, qwen_vocab, "one")
    assert not again.observe([Message.user("and?")], most - 1)
    assert again.observe([Message.user("and?")], most)
    assert len(again) == most


def test_all_segments_count_with_their_context(qwen_vocab: Vocab) -> None:
    transcript = begun(StrippedQwen3Format(qwen_vocab))
    sizes = []
    for words in ("one", "two", "three"):
        said(transcript, qwen_vocab, words)
        sizes.append(len(transcript))
        assert transcript.bytes_after(0) == most_bytes(sum(sizes), ())
        transcript.observe([Message.user("and?")], MAX_CONTEXT)
        assert transcript.bytes_after(3) == most_bytes(sum(sizes) + len(transcript) + 3, ())


def test_a_saved_transcript_goes_on_where_it_was(qwen_vocab: Vocab) -> None:
    transcript = begun(StrippedQwen3Format(qwen_vocab))
    said(transcript, qwen_vocab, "one")
    transcript.observe([Message.user("and?")], MAX_CONTEXT)
    again = Transcript(StrippedQwen3Format(qwen_vocab))
    again.restore(transcript.save())
    for one in (transcript, again):
        said(one, qwen_vocab, "two", 1)
        one.observe([Message.user("and?")], MAX_CONTEXT)
        said(one, qwen_vocab, "three", 1)
    assert again.columns() == transcript.columns()
    assert again.metas(1.0) == transcript.metas(1.0)
    assert again.num_turns == 3


@pytest.mark.parametrize("cut", [0, 1, len(COLUMNS) + 1])
def test_what_is_no_whole_number_of_segments_is_refused(qwen_vocab: Vocab, cut: int) -> None:
    transcript = begun(StrippedQwen3Format(qwen_vocab))
    said(transcript, qwen_vocab, "one")
    transcript.observe([Message.user("and?")], MAX_CONTEXT)
    with pytest.raises(TokenError, match="columns for a transcript"):
        Transcript(StrippedQwen3Format(qwen_vocab)).restore(transcript.save()[:cut])
    with pytest.raises(TokenError, match="columns for a transcript"):
        transcript.restore(transcript.save())
