"""Functions in slime's signature that ask by ids, for tests."""

from typing import Any

from agentrl.envs.slime_stand_in.http_utils import post
from tests.unit.generate_ground import Function
from tests.unit.rollout_ground import CHAT

#: A turn.
PARIS = "Paris<|im_end|>"


def url_of(args: Any) -> str:
    """Where a function asks."""
    return f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"


async def asked(args: Any, sample: Any, params: dict[str, Any]) -> dict[str, Any]:
    """One turn after the tokens of the sample, which it appends."""
    if not sample.tokens:
        sample.tokens = CHAT.vocab.encode_trusted(sample.prompt)
    payload = {"input_ids": sample.tokens, "sampling_params": params, "return_logprob": True}
    output: dict[str, Any] = await post(url_of(args), payload)
    pairs = output["meta_info"]["output_token_logprobs"]
    sample.append_response_tokens(
        args,
        tokens=[pair[1] for pair in pairs],
        log_probs=[pair[0] for pair in pairs],
        meta_info=output["meta_info"],
        text=output["text"],
    )
    return output


def edited(**fields: Any) -> Function:
    """A function that asks once and changes its sample: to a value, or what a value makes of it."""

    async def generate(args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
        await asked(args, sample, sampling_params)
        for name, value in fields.items():
            setattr(sample, name, value(sample) if callable(value) else value)
        return sample

    return generate
