"""Whatever a function returns: a token is trained where it was sampled, as it was sampled, or the
episode is refused with its position."""

from contextlib import suppress
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.actors.bound_samples import bound
from agentrl.actors.endpoint.calls import CallTree, Segment
from agentrl.actors.endpoint.prompts import Prompts
from agentrl.columns import Column
from agentrl.envs.returned import Returned
from agentrl.errors import EnvError
from agentrl.tokens.spans import context_spans
from agentrl.types import Generation, SpanKind
from tests.unit.rollout_ground import CHAT

pytestmark = pytest.mark.slow

MARKS = Column("marks", "<u2")
#: Few ids, so that prompts and answers look alike; one of them is a control token.
IDS = [5, 6, 7, CHAT.stop_ids[0]]
#: What nobody sampled, and no chat template writes behind a turn.
OTHERS = [id_ for id_ in range(8, 2000) if CHAT.vocab.decode([id_]).strip()]
SPACES = [id_ for id_ in range(8, 2000) if not CHAT.vocab.decode([id_]).strip()]


class Episode(NamedTuple):
    """A function's calls, each after the answer of the one before and what a tool wrote, and the
    sample that it returns."""

    tree: CallTree
    sample: Returned


def _logprob(number: int, at: int) -> float:
    """Of token `at` of the answer to call `number`."""
    return -0.25 * (1 + number) - 0.015625 * at


def _answered(tree: CallTree, prompts: Prompts, prompt: list[int], ids: list[int]) -> None:
    number = len(tree)
    logprobs = [_logprob(number, at) for at in range(len(ids))]
    marks = bytes([1, number]) * len(ids)
    generation = Generation(ids, logprobs, [number] * len(ids), "stop", columns={MARKS: marks})
    parent, rest = prompts.parent(prompt)
    call = tree.add(parent, context_spans(CHAT.vocab, rest), prompt, generation, "policy")
    prompts.remember(call, prompt, None, "", skip_special=False)


@st.composite
def episodes(draw: st.DrawFn) -> Episode:
    some = st.lists(st.sampled_from(IDS), max_size=4)
    tree = CallTree(CHAT, writes_prompts=True)
    prompts = Prompts(tree, CHAT.vocab)
    tokens = draw(st.lists(st.sampled_from(IDS), min_size=1, max_size=4))
    num_prompt, mask = len(tokens), bytes(len(tokens))
    for _ in range(draw(st.integers(1, 4))):
        if draw(st.booleans()):  # a call of which the sample holds nothing
            _answered(tree, prompts, tokens, draw(some) or [5])
        ids = draw(st.lists(st.sampled_from(IDS), min_size=1, max_size=5))
        _answered(tree, prompts, tokens, ids)
        kept = draw(st.integers(1, len(ids)))  # a function may cut what was sampled
        tokens, mask = tokens + ids[:kept], mask + b"\1" * kept
        told = draw(some)
        tokens, mask = tokens + told, mask + bytes(len(told))
    return Episode(tree, Returned(tokens, mask, num_prompt, False))


def bind(episode: Episode, *samples: Returned) -> list[Segment]:
    return bound(
        episode.tree.calls,
        CHAT.vocab,
        samples or [episode.sample],
        max_tokens=1000,
        max_bytes=10**6,
    )


@given(episodes())
def test_what_was_sampled_is_trained_with_what_the_engine_said(episode: Episode) -> None:
    ((_, stream),) = bind(episode)
    names = ["tokens", "kinds", "logprobs", "versions", "turns", "marks"]
    columns = dict(zip(names, stream.columns(), strict=True))
    assert columns["tokens"].tolist() == episode.sample.tokens
    sampled = [kind == SpanKind.SAMPLED for kind in columns["kinds"]]
    assert bytes(sampled) == episode.sample.trained
    for at, is_sampled in enumerate(sampled):
        number = columns["versions"][at]
        if not is_sampled:
            assert (number, columns["logprobs"][at], columns["marks"][at]) == (-1, 0.0, 0)
            continue
        call = episode.tree.calls[number]  # of several that said the same there, any is right
        prompt = episode.tree.prompt(call.parent, call.opened)
        assert prompt == episode.sample.tokens[: len(prompt)]
        assert columns["logprobs"][at] == _logprob(number, at - len(prompt))
        assert columns["marks"][at] == 1 + 256 * number


@given(episodes(), st.data())
def test_an_edit_of_a_trained_token_is_refused_with_its_position(
    episode: Episode, data: st.DataObject
) -> None:
    sample = episode.sample
    tokens, trained, num_prompt = sample.tokens, sample.trained, sample.num_prompt
    at = data.draw(st.sampled_from([at for at, mark in enumerate(trained) if mark]))
    other = data.draw(st.sampled_from(OTHERS))
    edited = [*tokens[:at], other, *tokens[at + 1 :]]
    with pytest.raises(EnvError, match=rf"sample 0, token {at} .* is {other} ") as refusal:
        bind(episode, Returned(edited, trained, num_prompt, False))
    assert f"(of its response: {at - num_prompt})" in str(refusal.value)


@given(episodes(), st.data())
def test_an_edit_of_what_the_engine_has_read_is_refused(
    episode: Episode, data: st.DataObject
) -> None:
    tokens, trained = episode.sample.tokens, episode.sample.trained
    last = trained.rindex(b"\1")
    at = data.draw(st.sampled_from([at for at in range(last) if not trained[at]]))
    edited = [*tokens[:at], data.draw(st.sampled_from(OTHERS)), *tokens[at + 1 :]]
    with pytest.raises(EnvError, match="with loss_mask 1, but was not sampled there"):
        bind(episode, Returned(edited, trained, episode.sample.num_prompt, False))


@given(episodes(), st.data())
def test_a_token_of_somebody_elses_is_not_trained(episode: Episode, data: st.DataObject) -> None:
    """A mask of 1 under what a tool wrote, or the prompt holds, where no call sampled it."""
    tokens = [*episode.sample.tokens, data.draw(st.sampled_from(OTHERS))]
    trained = episode.sample.trained + b"\1"
    with pytest.raises(EnvError, match=f"token {len(tokens) - 1} "):
        bind(episode, Returned(tokens, trained, episode.sample.num_prompt, False))


@given(st.lists(st.sampled_from(SPACES), min_size=1, max_size=3), st.data())
def test_white_space_behind_the_end_of_a_turn_is_context(
    spaces: list[int], data: st.DataObject
) -> None:
    """Whatever its mask; where the turn goes on, it is refused."""
    prompt, end = [OTHERS[0]], CHAT.stop_ids[0]
    said, finish = data.draw(
        st.sampled_from([([5, end], "stop"), ([5, end], "length"), ([end, OTHERS[1]], "stop")])
    )
    tree = CallTree(CHAT, writes_prompts=True)
    generation = Generation(said, [-0.5] * 2, [0] * 2, finish)
    tree.add(None, context_spans(CHAT.vocab, prompt), prompt, generation, "policy")
    sample = Returned([*prompt, *said, *spaces], bytes([0, 1, 1, *[1] * len(spaces)]), 1, False)
    if (said[-1], finish) != (end, "stop"):
        with pytest.raises(EnvError, match=r"token 3 .* was not sampled there"):
            bind(Episode(tree, sample))
        return
    ((_, stream),) = bind(Episode(tree, sample))
    kinds = list(stream.columns()[1])
    sampled = [kind == SpanKind.SAMPLED for kind in kinds]
    assert sampled == [False, True, True, *[False] * len(spaces)]


@given(episodes(), st.data())
def test_any_of_the_sampled_tokens_may_be_left_out_of_the_training(
    episode: Episode, data: st.DataObject
) -> None:
    trained = episode.sample.trained
    keeps = data.draw(st.lists(st.booleans(), min_size=len(trained), max_size=len(trained)))
    kept = bytes(mark and keep for mark, keep in zip(trained, keeps, strict=True))
    sample = Returned(episode.sample.tokens, kept, episode.sample.num_prompt, False)
    if not any(kept):
        with pytest.raises(EnvError, match="no token of what the function returned has loss_mask"):
            bind(episode, sample)
        return
    ((_, stream),) = bind(episode, sample)
    assert stream.num_sampled == sum(kept)


@given(episodes())
def test_a_token_is_trained_in_one_sample_alone(episode: Episode) -> None:
    """The second of two equal samples has what calls said twice, if anything."""
    calls = [
        (tuple(episode.tree.prompt(call.parent, call.opened)), tuple(call.generation.output_ids))
        for call in episode.tree.calls
    ]
    if len({prompt for prompt, _ in calls}) == len(calls):
        with pytest.raises(EnvError, match="and sample 0 trains it already"):
            bind(episode, episode.sample, episode.sample)
        return
    with suppress(EnvError):
        segments = bind(episode, episode.sample, episode.sample)
        total = sum(segment.stream.num_sampled for segment in segments)
        assert total <= sum(len(answer) for _, answer in calls)
