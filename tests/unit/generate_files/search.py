"""A function as slime's users write them: text goes to the engine, a tool answers between turns."""
# mypy: ignore-errors

import re

from slime.rollout.sglang_rollout import GenerateState
from slime.utils.http_utils import post
from slime.utils.types import Sample

FACTS = {"France": "Paris is the capital of France.\n"}
MAX_TURNS = 3


def observation(text):
    """What follows a turn; None after the last."""
    asked = re.search(r"<search>(.*?)</search>", text, re.DOTALL)
    if asked is None:
        return None
    found = FACTS.get(asked.group(1).strip(), "Nothing.")
    return f"\n\n<information>{found}</information>\n\n"


async def generate(args, sample: Sample, sampling_params) -> Sample:
    assert not args.partial_rollout
    tokenizer = GenerateState(args).tokenizer
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
    sampling_params = {**sampling_params, "stop": ["</search>", "</answer>"]}
    sample.tokens = tokenizer(sample.prompt, add_special_tokens=False)["input_ids"]
    for _ in range(MAX_TURNS):
        payload = {
            "text": sample.prompt + sample.response,
            "sampling_params": sampling_params,
            "return_logprob": True,
        }
        output = await post(url, payload)
        pairs = output["meta_info"]["output_token_logprobs"]
        sample.append_response_tokens(
            args,
            tokens=[pair[1] for pair in pairs],
            log_probs=[pair[0] for pair in pairs],
            meta_info=output["meta_info"],
            text=output["text"],
        )
        told = observation(output["text"])
        if told is None or output["meta_info"]["finish_reason"]["type"] == "length":
            break
        ids = tokenizer(told, add_special_tokens=False)["input_ids"]
        sample.append_response_tokens(args, tokens=ids, trainable=False, text=told)
    return sample


async def reward_func(args, sample, **kwargs):
    """Whether the label stands in an answer."""
    assert isinstance(sample, Sample)
    return float(f"<answer>{sample.label}</answer>" in sample.prompt + sample.response)
