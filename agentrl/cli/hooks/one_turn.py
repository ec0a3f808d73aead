"""An episode of one turn, as a function of slime's users plays it, for hooks that see samples."""

from typing import Any

from agentrl.envs.slime_stand_in.http_utils import post
from agentrl.envs.slime_stand_in.sglang_rollout import tokenizer_of

__all__ = ["one_turn"]


async def one_turn(args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
    """Ask once."""
    tokenizer = tokenizer_of(str(args.hf_checkpoint))
    sample.tokens = tokenizer(sample.prompt, add_special_tokens=False)["input_ids"]
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
    asked = {"text": sample.prompt, "sampling_params": sampling_params, "return_logprob": True}
    output = await post(url, asked)
    pairs = output["meta_info"]["output_token_logprobs"]
    sample.append_response_tokens(
        args,
        tokens=[pair[1] for pair in pairs],
        log_probs=[pair[0] for pair in pairs],
        meta_info=output["meta_info"],
        text=output["text"],
    )
    return sample
