"""A function as slime's users write them: solvers try a task at once, a selector reads what they
said, and each sample says whose it is and what that was worth."""
# mypy: ignore-errors

import asyncio
import copy

from slime.rollout.sglang_rollout import GenerateState
from slime.utils.http_utils import post
from slime.utils.types import Sample

NUM_SOLVERS = 3


async def generate(args, sample: Sample, sampling_params) -> list[Sample]:
    solvers = await asyncio.gather(
        *(
            _asked(args, sample, sampling_params, "solver", sample.prompt)
            for _ in range(NUM_SOLVERS)
        )
    )
    shown = "\n".join(f"{n}: {each.response}" for n, each in enumerate(solvers))
    prompt = f"{sample.prompt}\n{shown}\nWhich is right?"
    selector = await _asked(args, sample, sampling_params, "selector", prompt)
    chosen = selector.response.strip()
    right = [each.response.strip() == sample.label for each in solvers]
    is_right = chosen.isdigit() and int(chosen) < len(right) and right[int(chosen)]
    for each, found in zip(solvers, right, strict=True):
        each.reward = float(found) * (1.2 if is_right else 0.8)
    selector.reward = float(is_right)
    return [*solvers, selector]


async def _asked(args, sample, sampling_params, role, prompt):
    one = copy.deepcopy(sample)
    one.train_metadata = {"role": role}
    tokenizer = GenerateState(args).tokenizer
    one.tokens = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
    payload = {
        "input_ids": one.tokens,
        "sampling_params": sampling_params,
        "return_logprob": True,
    }
    output = await post(url, payload)
    sampled = output["meta_info"]["output_token_logprobs"]
    one.append_response_tokens(
        args,
        tokens=[token for _, token, _ in sampled],
        log_probs=[logprob for logprob, _, _ in sampled],
        meta_info=output["meta_info"],
        text=output["text"].removesuffix("<|im_end|>"),
    )
    return one
