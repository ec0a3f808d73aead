"""SGLang's own `/generate`: a request by text or ids, and its answer. Pure.

    {"text" | "input_ids", "sampling_params": {...}, "return_logprob": true}
    -> {"text", "output_ids", "meta_info": {"finish_reason", "output_token_logprobs", ...}}

What asks for another distribution than the run's is ignored and counted. Where nothing is trained
on the answers (`is_free`) it is heeded, or refused if engines here cannot do it. What asks for
another shape of answer is refused. Names and defaults are those of SGLang.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from agentrl.errors import ChatError
from agentrl.tokens.vocab import Vocab
from agentrl.types import Generation, SamplingParams

__all__ = ["GenerateRequest", "Generated", "decode_generate", "generated", "text_of"]

#: Tokens of an answer whose request says nothing.
_MAX_NEW_TOKENS = 128
_MAX_STOPS = 16
_Count = Annotated[int, msgspec.Meta(ge=0)]


class GenerateRequest(msgspec.Struct, frozen=True):
    """A request that can be answered: a prompt of `ids`, or of `text`. `ignored` names what was
    asked of the sampling in vain; `prompt_logprobs`: from which token of the prompt on its ids are
    wanted too; `sampling`: how it is sampled, where it may say so."""

    text: str | None
    ids: tuple[int, ...]
    max_new_tokens: int
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    skip_special: bool = True
    trims_stop: bool = True
    return_logprob: bool = False
    prompt_logprobs: int | None = None
    ignored: tuple[str, ...] = ()
    sampling: SamplingParams | None = None


class Generated(msgspec.Struct, frozen=True):
    """An answered request. `matched`: the string that ended it, if one did."""

    id: str
    prompt: Sequence[int]
    generation: Generation
    text: str
    matched: str | None = None


class _Sampling(msgspec.Struct):
    max_new_tokens: _Count | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    skip_special_tokens: bool | None = None
    no_stop_trim: bool | None = None
    n: int | None = None
    regex: Any = None
    json_schema: Any = None
    ebnf: Any = None
    structural_tag: Any = None


class _Body(msgspec.Struct):
    text: str | None = None
    input_ids: list[_Count] | None = None
    sampling_params: _Sampling | None = None
    return_logprob: bool | None = None
    logprob_start_len: int | None = None
    top_logprobs_num: int | None = None
    stream: bool | None = None
    image_data: Any = None


class _Distribution(msgspec.Struct):
    temperature: Annotated[float, msgspec.Meta(ge=0)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1)] | None = None
    min_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None


#: What may stand in `sampling_params` and changes no distribution.
_PLAIN = (*_Sampling.__struct_fields__, "spaces_between_special_tokens", "custom_params")
#: What changes it beside `_Distribution`, and the value of each that does not.
_IDLE: dict[str, Any] = {
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "repetition_penalty": 1,
    "min_new_tokens": 0,
    "ignore_eos": False,
}


def decode_generate(
    body: bytes, sampling: SamplingParams, *, is_free: bool = False
) -> GenerateRequest:
    """The request of an HTTP body. `sampling` is the run's; `is_free`: a request may say another.
    Raises ChatError, which says why."""
    try:
        asked = msgspec.json.decode(body)
        read = msgspec.convert(asked, _Body)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        words = f"this is no request that /generate answers: {error}"
        raise ChatError(words, code="invalid_request") from error
    if (read.text is None) == (read.input_ids is None):
        raise ChatError("a request has either text or input_ids", param="text")
    told = read.sampling_params or _Sampling()
    _refuse_other_shapes(read, told)
    stops = [told.stop] if isinstance(told.stop, str) else told.stop or []
    if len(stops) > _MAX_STOPS:
        raise ChatError(f"stop lists {len(stops)} strings; {_MAX_STOPS} at most", param="stop")
    most = _MAX_NEW_TOKENS if told.max_new_tokens is None else told.max_new_tokens
    asked_params = asked.get("sampling_params") or {}
    own = _own_sampling(asked_params, sampling) if is_free else None
    return GenerateRequest(
        text=read.text,
        ids=tuple(read.input_ids or ()),
        max_new_tokens=most,
        stop=tuple(stop for stop in stops if stop),
        stop_ids=tuple(told.stop_token_ids or ()),
        skip_special=told.skip_special_tokens is not False,
        trims_stop=not told.no_stop_trim,
        return_logprob=bool(read.return_logprob),
        prompt_logprobs=read.logprob_start_len,
        ignored=_ignored(asked_params, own or sampling),
        sampling=own,
    )


def _own_sampling(asked: Mapping[str, Any], usual: SamplingParams) -> SamplingParams:
    """As the request says, and where it says nothing as the run does. Raises ChatError for what no
    engine here can do."""
    for name, idle in _IDLE.items():
        if asked.get(name) not in (None, idle):
            words = (
                f"{name} is {asked[name]!r:.40}; answers here are sampled with {idle}: leave it out"
            )
            raise ChatError(words, param=name)
    try:
        told = msgspec.convert(dict(asked), _Distribution)
    except msgspec.ValidationError as error:
        raise ChatError(f"sampling_params: {error}", code="invalid_request") from error
    given = {n: value for n, value in msgspec.structs.asdict(told).items() if value is not None}
    if given.get("top_k") == 0:
        raise ChatError("top_k is 0, which leaves no token; -1 is all of them", param="top_k")
    return msgspec.structs.replace(usual, **given)


def _refuse_other_shapes(body: _Body, told: _Sampling) -> None:
    if told.n not in (None, 1):
        raise ChatError(f"n is {told.n}; send {told.n} requests, one answer each", param="n")
    for name in ("regex", "json_schema", "ebnf", "structural_tag"):
        if getattr(told, name) is not None:
            words = f"{name}: the run samples freely, and trains what was sampled so; leave it out"
            raise ChatError(words, param=name)
    if body.top_logprobs_num:
        words = "log-probabilities are of the sampled tokens alone; leave out top_logprobs_num"
        raise ChatError(words, param="top_logprobs_num")
    for name, advice in (("stream", "answers come whole"), ("image_data", "prompts are text")):
        if getattr(body, name):
            raise ChatError(f"{name}: {advice}; leave it out", param=name)


def _ignored(asked: Mapping[str, Any], sampling: SamplingParams) -> tuple[str, ...]:
    """What the request says of the sampling, and the run says otherwise."""
    own = {name: getattr(sampling, name) for name in _Distribution.__struct_fields__}
    usual: dict[str, Any] = own | _IDLE
    return tuple(
        name
        for name, value in asked.items()
        if name not in _PLAIN and value is not None and usual.get(name, ...) != value
    )


def text_of(
    vocab: Vocab, generation: Generation, request: GenerateRequest, matched: str | None
) -> str:
    """The text of an answer. A string that ended it (`matched`), and an id that did, are left out
    where the request has them trimmed."""
    ids = generation.output_ids
    by_id = generation.finish_reason == "stop" and matched is None
    if by_id and request.trims_stop:
        ids = ids[:-1]
    text = vocab.decode(ids, skip_special=request.skip_special)
    return text.partition(matched)[0] if matched and request.trims_stop else text


def generated(answer: Generated, request: GenerateRequest, took_s: float) -> bytes:
    """The body of an answer, `took_s` after its request."""
    sampled = answer.generation
    meta: dict[str, Any] = {
        "id": answer.id,
        "finish_reason": _finish(answer),
        "prompt_tokens": len(answer.prompt),
        "completion_tokens": len(sampled.output_ids),
        "cached_tokens": 0,
        "e2e_latency": took_s,
        "weight_version": str(max(sampled.versions, default=0)),
    }
    if request.return_logprob:
        pairs = zip(sampled.logprobs, sampled.output_ids, strict=True)
        # no engine has scored them
        meta["input_token_logprobs"] = [[None, id_, None] for id_ in _scored(answer, request)]
        meta["output_token_logprobs"] = [[logprob, id_, None] for logprob, id_ in pairs]
    body = {"text": answer.text, "output_ids": sampled.output_ids, "meta_info": meta}
    return json.dumps(body).encode()


def _scored(answer: Generated, request: GenerateRequest) -> Sequence[int]:
    start = request.prompt_logprobs
    return () if start is None or start < 0 else answer.prompt[start:]


def _finish(answer: Generated) -> dict[str, Any]:
    sampled = answer.generation
    if sampled.finish_reason != "stop":
        return {"type": "length", "length": len(sampled.output_ids)}
    return {"type": "stop", "matched": answer.matched or sampled.output_ids[-1]}
