"""`args` of a function in slime's signature: the flags of the run, and where it asks its model."""

from typing import Any, cast

from agentrl.config.args import Args
from agentrl.config.run import RunConfig
from agentrl.types import SamplingParams

__all__ = ["args_for"]


def args_for(
    flags: RunConfig | None, base_url: str, api_key: str, sampling: SamplingParams
) -> Args:
    """Those that lead to the endpoint at `base_url`, under the name and with the `api_key` of who
    asks. `args.sampling_params` say `sampling` as a request of the run itself would."""
    args: Any = Args(flags)
    address = base_url.removeprefix("http://").partition("/")[0]
    host, _, port = address.rpartition(":")
    args.sglang_router_ip = f"agentrl:{api_key}@{host}"
    args.sglang_router_port = int(port)
    args.partial_rollout = False
    args.sampling_params = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "max_new_tokens": sampling.max_new_tokens,
        "stop": list(sampling.stop) or None,
        "stop_token_ids": list(sampling.stop_token_ids) or None,
        "skip_special_tokens": False,
        "no_stop_trim": True,
        "spaces_between_special_tokens": False,
    }
    return cast(Args, args)
