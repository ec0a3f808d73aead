"""`--true-on-policy-mode`: what a run has to be so that engine and learner give the same bits.

Both compute by `agentrl.exact`, whose sums have no order. What either side computes by something
else is refused, and so is what was never compared: see docs/adr/0029.
"""

from collections.abc import Iterator

from agentrl.config.engine_settings import ways_of_groups
from agentrl.config.run import RunConfig

__all__ = ["FLAG", "about_true_on_policy"]

FLAG = "--true-on-policy-mode"

#: Fields of ServerArgs that choose what an engine computes with, and the one value that is right.
_ENGINE = {
    "dtype": ("float32", "float", None),
    "tp_size": (1, None),
    "ep_size": (1, None),
    "attn_dp_size": (1, None),
    **dict.fromkeys(("dp_size", "page_size"), (1, None)),
    **dict.fromkeys(("enable_dp_attention", "enable_torch_compile", "enable_lora"), (False, None)),
    **dict.fromkeys(
        (
            *("attention_backend", "decode_attention_backend", "prefill_attention_backend"),
            *("sampling_backend", "quantization", "kv_cache_dtype", "lora_paths", "model_impl"),
        ),
        (None,),
    ),
}
#: Of Megatron: a rank adds up its own part of a sum and rounds it.
_LEARNER = ("tensor_model_parallel_size", "context_parallel_size", "pipeline_model_parallel_size")


def about_true_on_policy(config: RunConfig) -> Iterator[str]:
    """What contradicts the mode, apart from the device and the model."""
    if not config.computes_exactly:
        return
    for _, way in ways_of_groups(config):
        for name, right in _ENGINE.items():
            if (value := way.sglang.get(name)) not in right:
                yield (
                    f"{FLAG} and --sglang-{name.replace('_', '-')} {value}: the engine would "
                    "compute otherwise than the learner; leave one of the two out"
                )
        if (ranks := way.rollout_num_gpus_per_engine) > 1:
            yield (
                f"{FLAG} and --rollout-num-gpus-per-engine {ranks}: ranks round their parts of a "
                "sum before these are added up; make it 1"
            )
    for name in _LEARNER:
        if (size := int(config.megatron.get(name) or 1)) > 1:
            yield (
                f"{FLAG} and --{name.replace('_', '-')} {size}: ranks would share what one rank "
                "of an engine computes, which was never compared; make it 1"
            )
    others = {
        "--bf16": (config.megatron.get("bf16"), "the mode is of float32"),
        "--rollout-external-engine-addrs": (
            config.rollout_external_engine_addrs,
            "engines of yours compute as they were started",
        ),
        "--kv-across-pushes keep": (
            config.keeps_cache,
            "a fresh token would look at keys of older weights",
        ),
        f"--kv-cache-versions {config.kv_cache_versions}": (
            config.kv_cache_versions > 1,
            "a fresh token would look at keys of older weights",
        ),
        "--enable-mtp-training": (config.enable_mtp_training, "its layers were never compared"),
    }
    for other, (is_given, why) in others.items():
        if is_given:
            yield f"{FLAG} and {other}: {why}; leave one of the two out"
