"""What a function says that was sampled, bound to what was: samples become trajectories. Pure.

    tokens of a sample    P P P  S S S  T T  S S S
    loss_mask             0 0 0  1 1 1  0 0  1 1 1
    calls                 [prompt][ 0 ]
                          [   prompt       ][  1  ]

A token with loss_mask 1 becomes SAMPLED where a call of this episode has the same tokens before it
and sampled it there, with the log-probability and the version that the engine gave it; each sampled
token in one sample at most. Any other is refused, with its position, but for white space that chat
templates write behind the end of a turn. It is context, as any token with loss_mask 0 is, whoever
wrote it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentrl.actors.endpoint.calls import Call, Segment
from agentrl.columns import EXCLUDED, most_bytes
from agentrl.envs.returned import Returned
from agentrl.errors import EnvError
from agentrl.tokens.spans import context_spans
from agentrl.tokens.stream import TokenStream
from agentrl.tokens.vocab import Vocab

__all__ = ["bound"]

_Ids = NDArray[np.int64]


class _Agreement(NamedTuple):
    """A call beside a sample: `agreed` tokens from the first on are those of its prompt
    (`num_prompt`) and of what was sampled after it."""

    number: int
    call: Call
    num_prompt: int
    agreed: int


def bound(
    calls: Sequence[Call],
    vocab: Vocab,
    samples: Sequence[Returned],
    *,
    max_tokens: int,
    max_bytes: int,
) -> list[Segment]:
    """A trajectory for each sample that trains something. `max_tokens` of one, and `max_bytes` of
    all together. Raises EnvError."""
    binder = _Binder(calls, vocab, max_tokens)
    segments = [
        Segment(sample.role, binder.stream(number, sample))
        for number, sample in enumerate(samples)
        if any(sample.trained)
    ]
    if not segments:
        raise EnvError(
            "no token of what the function returned has loss_mask 1, so nothing can be trained; to "
            "keep an episode out of the loss, set sample.remove_sample = True"
        )
    total = sum(len(one.stream) for one in segments)
    optional = {column for one in segments for column in one.stream.optional}
    if most_bytes(total, optional) > max_bytes:
        raise EnvError(
            f"the {len(segments)} samples have {total} tokens together, and no more than "
            f"{max_bytes >> 20} MiB can be reported: return fewer or shorter ones"
        )
    return segments


class _Binder:
    def __init__(self, calls: Sequence[Call], vocab: Vocab, max_tokens: int) -> None:
        self._calls = calls
        self._vocab = vocab
        self._max_tokens = max_tokens
        #: Which sample trains a token: by call and place in its answer.
        self._used: dict[tuple[int, int], int] = {}

    def stream(self, number: int, sample: Returned) -> TokenStream:
        """The trajectory of sample `number`. Raises EnvError."""
        tokens = sample.tokens
        self._check(number, tokens)
        stream = TokenStream(self._vocab, openers=None)
        known = self._agreements(tokens)
        at = 0
        while at < len(tokens):
            end = _end_of_run(sample.trained, at)
            if not sample.trained[at]:
                stream.extend(context_spans(self._vocab, tokens[at:end]))
                at = end
                continue
            while at < end:
                at = self._sampled(stream, number, sample, known, at, end)
        if sample.excluded:
            stream.write(EXCLUDED, b"\1" * len(stream))
        return stream

    def _check(self, number: int, tokens: Sequence[int]) -> None:
        if len(tokens) > self._max_tokens:
            raise EnvError(
                f"sample {number} has {len(tokens)} tokens, more than the context of "
                f"{self._max_tokens} (--rollout-max-context-len)"
            )
        size = self._vocab.size
        for at, id_ in enumerate(tokens):
            if id_ >= size:
                raise EnvError(
                    f"sample {number}, token {at}: {id_} is no token; the tokenizer has ids below "
                    f"{size}"
                )

    def _sampled(
        self,
        stream: TokenStream,
        number: int,
        sample: Returned,
        known: Sequence[_Agreement],
        at: int,
        end: int,
    ) -> int:
        """Append tokens from `at` on that one call has sampled, up to `end`; returns where the next
        one stands."""
        free = [
            each
            for each in known
            if each.num_prompt <= at < each.agreed
            and (each.number, at - each.num_prompt) not in self._used
        ]
        if not free and self._is_closing(known, sample.tokens, at, end):
            stream.extend(context_spans(self._vocab, sample.tokens[at:end]))
            return end
        if not free:
            raise EnvError(self._refusal(number, sample, known, at))
        best = max(free, key=lambda each: each.agreed)
        start, stop = at - best.num_prompt, at - best.num_prompt
        while stop < min(end, best.agreed) - best.num_prompt:
            if (best.number, stop) in self._used:
                break
            self._used[best.number, stop] = number
            stop += 1
        _write(stream, best.call, start, stop)
        return best.num_prompt + stop

    def _is_closing(
        self, known: Sequence[_Agreement], tokens: Sequence[int], at: int, end: int
    ) -> bool:
        """Whether the tokens are white space behind a turn that its model has ended: what chat
        templates write there, and no engine samples."""
        is_closed = any(
            each.num_prompt + len(each.call.generation.output_ids) == at <= each.agreed
            and each.call.generation.finish_reason == "stop"
            for each in known
        )
        is_by_id = tokens[at - 1] in self._vocab.control_ids  # and by no string
        return is_closed and is_by_id and not self._vocab.decode(tokens[at:end]).strip()

    def _agreements(self, tokens: Sequence[int]) -> list[_Agreement]:
        """Each call beside the tokens. A call comes after the one that it continues."""
        ids: _Ids = np.asarray(tokens, np.int64)
        found: dict[Call, _Agreement] = {}
        for number, call in enumerate(self._calls):
            before = found.get(call.parent) if call.parent is not None else None
            start = 0
            if before is not None:
                start = before.num_prompt + len(before.call.generation.output_ids)
            opened = [id_ for span in call.opened for id_ in span.ids]
            agreed = start if before is None else before.agreed
            if agreed == start:
                own = [*opened, *call.generation.output_ids]
                agreed += _num_common(ids[start:], np.asarray(own, np.int64))
            found[call] = _Agreement(number, call, start + len(opened), agreed)
        return list(found.values())

    def _refusal(self, number: int, sample: Returned, known: Sequence[_Agreement], at: int) -> str:
        id_ = sample.tokens[at]
        where = (
            f"sample {number}, token {at} (of its response: {at - sample.num_prompt}) is {id_} "
            f"({self._vocab.decode([id_])!r:.40}) with loss_mask 1"
        )
        if not known:
            return f"{where}, and no call of the function was answered"
        for each in known:
            owner = self._used.get((each.number, at - each.num_prompt))
            if owner is not None and at < each.agreed:
                return (
                    f"{where}, and sample {owner} trains it already: a token is trained once; give "
                    "it loss_mask 0 in one of them"
                )
        best = max(known, key=lambda each: each.agreed)
        call = f"call {best.number}"
        whole = best.num_prompt + len(best.call.generation.output_ids)
        if best.agreed == whole:
            why = f"{call} ends before it, with token {whole - 1}"
        elif best.agreed < best.num_prompt:
            why = f"the prompt of {call} is another from token {best.agreed} on"
        else:
            sampled = best.call.generation.output_ids[best.agreed - best.num_prompt]
            word = f"{self._vocab.decode([sampled])!r:.40}"
            why = f"{call} has sampled {sampled} ({word}) as token {best.agreed}"
        return (
            f"{where}, but was not sampled there: {why}. Train the ids of output_token_logprobs "
            "(return_logprob) as they are, after the ids or the text that was asked"
        )


def _write(stream: TokenStream, call: Call, start: int, stop: int) -> None:
    """The tokens `start..stop` of a call's answer, and what the engine said of them."""
    sampled = call.generation
    stream.prompt_ids()
    stream.sampled(
        sampled.output_ids[start:stop], sampled.logprobs[start:stop], sampled.versions[start:stop]
    )
    rest = len(sampled.output_ids) - stop
    for column, values in sampled.columns.items():
        data = bytes(values)
        data = data[: len(data) - rest * column.token_bytes]
        # what is known of the prompt stands before the first token that was sampled after it
        data = data[len(data) - (stop - start) * column.token_bytes :] if start else data
        stream.write(column, data)


def _end_of_run(trained: bytes, at: int) -> int:
    """Where the run of equal marks ends that begins at `at`."""
    end = trained.find(b"\0" if trained[at] else b"\1", at)
    return len(trained) if end < 0 else end


def _num_common(one: _Ids, other: _Ids) -> int:
    """How many first items are the same."""
    size = min(len(one), len(other))
    differs = np.flatnonzero(one[:size] != other[:size])
    return int(differs[0]) if len(differs) else size
