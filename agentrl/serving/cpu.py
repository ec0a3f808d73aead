"""Entry point of SGLang's platform plugin (`sglang.srt.platforms`): CPU hosts without sgl_kernel.

SGLang imports and calls `activate` in every engine process, on every host where agentrl is
installed. It must stay cheap and change nothing unless this host has no accelerator: on a GPU host
it answers None and SGLang goes on to its own CUDA platform.
"""

import os

__all__ = ["ATTENTION_BACKEND", "EXACT", "PLUGIN_NAME", "activate"]

#: Name of the entry point; `SGLANG_PLATFORM` takes it.
PLUGIN_NAME = "agentrl_cpu"
#: Name under which the platform registers its attention; `--attention-backend` takes it.
ATTENTION_BACKEND = "torch_batched"
#: Environment variable that is set where the engine computes exactly (`--true-on-policy-mode`).
EXACT = "AGENTRL_TRUE_ON_POLICY"


def activate() -> str | None:
    """Qualified name of the platform class, or None where SGLang has a better platform.

    `SGLANG_PLATFORM=agentrl_cpu` asks for this platform by name and always gets it. Otherwise it
    steps in only where no accelerator is visible and SGLang's own CPU engine was not asked for.
    """
    platform = "agentrl.serving.cpu_platform:HostPlatform"
    if os.environ.get("SGLANG_PLATFORM") == PLUGIN_NAME:
        return platform
    import torch  # there already when SGLang calls; too heavy for those who want PLUGIN_NAME

    if os.environ.get("SGLANG_USE_CPU_ENGINE", "0") == "1" or torch.accelerator.is_available():
        return None
    return platform
