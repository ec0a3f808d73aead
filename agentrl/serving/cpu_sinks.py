"""What SGLang lacks for gpt-oss on a CPU host: attention with a sink in each head.

A sink is a learned score that stands beside those of the keys in the softmax and has no value.
SGLang takes such a model only with an attention backend that is known to have sinks, by its name;
ours has them (`cpu_attention`) and is told under the name of one of these. And it keeps sinks in
bfloat16 whatever the model is in; here they are in float32, which holds both.
"""

from functools import partial
from typing import Any

import torch

from agentrl.serving.cpu import ATTENTION_BACKEND

__all__ = ["register_sinks"]

#: A backend that SGLang knows to have sinks.
_KNOWN = "triton"


def register_sinks() -> None:
    """Have SGLang take such a model; call it once, before SGLang applies its hooks."""
    from sglang.srt.arg_groups import model_hook
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    # Here alone: a hook of the registry would rename the backend wherever SGLang asks for it.
    model_hook.attention_backends_of = partial(_as_known, model_hook.attention_backends_of)
    place = "sglang.srt.models.gpt_oss.GptOssAttention.__init__"
    HookRegistry.register(place, _in_float32, HookType.AFTER)


def _as_known(original: Any, *args: Any, **kwargs: Any) -> tuple[str, ...]:
    names = original(*args, **kwargs)
    return tuple(_KNOWN if name == ATTENTION_BACKEND else name for name in names)


def _in_float32(_result: object, attention: Any, *args: Any, **kwargs: Any) -> None:
    sinks = attention.sinks.to(torch.float32)
    attention.sinks = torch.nn.Parameter(sinks, requires_grad=False)
