"""`POST /generate` at an episode's endpoint: what it answers, and what it refuses."""

from typing import Any

import anyio
import httpx
import pytest

from agentrl.actors.endpoint.server import Endpoint
from agentrl.envs.slime_stand_in.http_utils import post
from agentrl.types import Outcome, SamplingParams
from tests.unit.generate_asking import PARIS, asked, url_of
from tests.unit.generate_ground import play_function
from tests.unit.rollout_ground import CHAT, Policy

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "either text or input_ids"),
        ({"text": "a", "input_ids": [1]}, "either text or input_ids"),
        ({"text": ""}, "the prompt is empty"),
        ({"text": ["a", "b"]}, "this is no request"),
        ({"input_ids": [10**6]}, "input_ids[0] is 1000000"),
        ({"input_ids": [-1]}, "this is no request"),
        ({"text": "a", "sampling_params": {"n": 2}}, "send 2 requests"),
        ({"text": "a", "sampling_params": {"regex": "a"}}, "regex: the run samples freely"),
        ({"text": "a", "sampling_params": {"max_new_tokens": -1}}, "this is no request"),
        ({"text": "a", "sampling_params": {"stop": ["x"] * 17}}, "16 at most"),
        ({"text": "a", "stream": True}, "answers come whole"),
        ({"text": "a", "image_data": "x"}, "prompts are text"),
        ({"text": "a", "top_logprobs_num": 1}, "of the sampled tokens alone"),
    ],
)
async def test_what_is_not_answered_says_why(body: dict[str, Any], said: str) -> None:
    found: list[httpx.Response] = []

    async def generate(args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
        async with httpx.AsyncClient() as client:
            found.append(await client.post(url_of(args), json=body))
        return sample

    await play_function(generate, Policy([PARIS]))
    assert found[0].status_code == 400
    assert said in found[0].text


@pytest.mark.parametrize(
    ("params", "text", "finish"),
    [
        ({}, "It is in France now", ("stop", CHAT.stop_ids[0])),
        ({"no_stop_trim": True}, "It is in France now", ("stop", CHAT.stop_ids[0])),
        (
            {"no_stop_trim": True, "skip_special_tokens": False},
            "It is in France now<|im_end|>",
            ("stop", CHAT.stop_ids[0]),
        ),
        ({"stop": "France"}, "It is in ", ("stop", "France")),
        ({"stop": ["France"], "no_stop_trim": True}, "It is in France", ("stop", "France")),
        ({"max_new_tokens": 0}, "", ("length", 0)),
    ],
)
async def test_an_answer_is_cut_and_trimmed_as_an_engine_does(
    params: dict[str, Any], text: str, finish: tuple[str, Any]
) -> None:
    outputs: list[dict[str, Any]] = []

    async def generate(args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
        told = {"max_new_tokens": 100} | params
        payload = {"text": "Where?", "sampling_params": told, "return_logprob": True}
        outputs.append(await post(url_of(args), payload))
        return sample

    await play_function(generate, Policy(["It is in France now<|im_end|>"]))
    (output,) = outputs
    meta = output["meta_info"]
    kind, value = finish
    key = "matched" if kind == "stop" else "length"
    assert (output["text"], meta["finish_reason"]) == (text, {"type": kind, key: value})
    assert [pair[1] for pair in meta["output_token_logprobs"]] == output["output_ids"]
    assert meta["completion_tokens"] == len(output["output_ids"])


@pytest.mark.parametrize(("trims", "text"), [(True, "It is in "), (False, "It is in France")])
async def test_the_stop_strings_of_the_run_end_an_answer_too(trims: bool, text: str) -> None:
    outputs: list[dict[str, Any]] = []

    async def generate(args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
        assert sampling_params["stop"] == ["France"]
        told = {"max_new_tokens": 100, "no_stop_trim": not trims}
        outputs.append(await post(url_of(args), {"text": "Where?", "sampling_params": told}))
        return sample

    sampling = SamplingParams(max_new_tokens=100, stop=("France",))
    await play_function(
        generate, Policy(["It is in France now<|im_end|>"]), assignment={"sampling": sampling}
    )
    (output,) = outputs
    matched = {"type": "stop", "matched": "France"}
    assert (output["text"], output["meta_info"]["finish_reason"]) == (text, matched)


async def test_a_text_that_cuts_an_answer_keeps_the_tokens_that_are_left() -> None:
    async def generate(args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
        first = await post(url_of(args), {"text": "Where?", "sampling_params": sampling_params})
        cut = first["text"][: first["text"].index(" now")]
        payload = {"text": f"Where?{cut} Why?", "sampling_params": sampling_params}
        await post(url_of(args), payload)
        return sample

    policy = Policy(["It is in France now<|im_end|>", PARIS])
    await play_function(generate, policy)
    (before, said), (after, _) = policy.asked
    kept = CHAT.vocab.encode_trusted("It is in France")
    assert said[: len(kept)] == kept
    assert after == [*before, *kept, *CHAT.vocab.encode_trusted(" Why?")]


async def test_a_text_goes_on_after_what_was_sampled_and_not_after_its_spelling() -> None:
    """An answer that no tokenizer would write so."""
    spelled = [id_ for letter in "France" for id_ in CHAT.vocab.encode_trusted(letter)]
    assert spelled != CHAT.vocab.encode_trusted("France")

    class Letters(Policy):
        def _sampled(self, said: str, sampling: Any) -> list[int]:
            return spelled

    async def generate(args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
        first = await post(url_of(args), {"text": "Where?", "sampling_params": sampling_params})
        text = f"Where?{first['text']}. Why?"
        await post(url_of(args), {"text": text, "sampling_params": sampling_params})
        return sample

    policy = Letters(["", ""], finish="length")
    await play_function(generate, policy)
    asked_first, asked_then = (prompt for prompt, _ in policy.asked)
    assert asked_then[: len(asked_first) + len(spelled)] == [*asked_first, *spelled]


async def test_what_steers_the_sampling_is_ignored_and_counted() -> None:
    async def generate(args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
        await asked(args, sample, sampling_params | {"temperature": 0.1, "min_p": 0.5})
        return sample

    policy = Policy([PARIS])
    report = (await play_function(generate, policy)).report
    assert report.outcome is Outcome.DONE
    assert report.metrics["ignored_settings"] == 1.0
    assert policy.sampling[0].temperature == 1.0


@pytest.mark.parametrize(("start", "shown"), [(None, 0), (-1, 0), (0, 3), (2, 1)])
async def test_of_a_prompt_its_ids_are_answered_alone(start: int | None, shown: int) -> None:
    outputs: list[dict[str, Any]] = []
    ids = CHAT.vocab.encode_trusted("Where is France?")[:3]
    payload = {"input_ids": ids, "return_logprob": True, "logprob_start_len": start}

    async def generate(args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
        outputs.append(await post(url_of(args), payload))
        return sample

    await play_function(generate, Policy([PARIS]))
    meta = outputs[0]["meta_info"]
    assert meta["input_token_logprobs"] == [[None, id_, None] for id_ in ids[len(ids) - shown :]]
    assert meta["prompt_tokens"] == len(ids)
    assert meta["e2e_latency"] >= 0


async def test_answers_that_are_asked_for_at_once_have_ids_of_their_own() -> None:
    ids: list[str] = []

    async def generate(args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
        async def one() -> None:
            output = await post(url_of(args), {"text": "Where?"})
            ids.append(output["meta_info"]["id"])

        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(one)
        return sample

    await play_function(generate, Policy([PARIS] * 4))
    assert len({*ids}) == 4


async def test_a_key_that_belongs_to_no_episode_is_refused() -> None:
    async with Endpoint() as endpoint, httpx.AsyncClient() as client:
        url = (await endpoint.url()).replace("http://", "http://agentrl:nobody@")
        reply = await client.post(url.replace("/v1", "/generate"), json={"text": "a"})
        assert reply.status_code == 401
