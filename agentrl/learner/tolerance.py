"""How far apart engine and learner may be about the same tokens, by precision.

Both compute the same function of the same weights; what is left between them is rounding, in
another order. `benchmarks/precision.py` measures it with an SGLang engine on the CPU (mean of
|engine - learner|, in nats): up to 1.3e-5 in float32; in bfloat16 0.005 to 0.008 for the three
layers of the default job and up to 0.041 for 24. Published for SGLang with Megatron in bfloat16 on
GPUs: 0.011 at the first step of Qwen3-4B and up to 0.036 later (vime issue 64), 0.041 for a mixture
of experts (miles issue 2722). A person is told of more than any sound pair has shown.
"""

import msgspec

from agentrl.config.device_defaults import engine_dtype
from agentrl.config.run import RunConfig

__all__ = ["BFLOAT16", "FLOAT32", "NONE", "Tolerance", "tolerance_of"]


class Tolerance(msgspec.Struct, frozen=True):
    """Bounds for on-policy tokens, in nats.

    max_diff    greatest mean |engine - learner| log-probability
    note_diff   from here on a person is told
    max_kl      greatest KL from engine to learner of trained tokens: some tokens that the engine
                calls improbable and the learner does not
    """

    precision: str
    max_diff: float
    note_diff: float
    max_kl: float


FLOAT32 = Tolerance("float32", max_diff=1e-3, note_diff=1e-4, max_kl=0.01)
#: `--true-on-policy-mode`.
NONE = Tolerance("true on-policy mode", max_diff=0.0, note_diff=0.0, max_kl=0.0)
BFLOAT16 = Tolerance("16-bit floats", max_diff=0.1, note_diff=0.05, max_kl=0.05)


def tolerance_of(config: RunConfig) -> Tolerance:
    """The tolerance of a run: that of the less exact of learner and engines. Float32 on GPUs, where
    products may be of fewer bits (TF32), was not measured and has the wider one."""
    if config.computes_exactly:
        return NONE
    is_exact = engine_dtype(config) == "float32" and config.device != "cuda"
    is_exact &= not any(config.sglang.get(name) for name in ("quantization", "kv_cache_dtype"))
    return FLOAT32 if is_exact and not config.megatron.get("bf16") else BFLOAT16
