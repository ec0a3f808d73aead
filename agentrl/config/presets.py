"""Presets: named sets of values that lie under the user's own.

`--preset NAME` asks for one. A run that names neither model, data nor environment takes `DEFAULT`,
and one that asks for a preset which names none of these has `DEFAULT` under that.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from agentrl.config import dapo
from agentrl.errors import ConfigError
from agentrl.nearest import nearest

__all__ = ["DEFAULT", "PRESETS", "Preset", "preset"]

_PACKAGE = Path(__file__).resolve().parent.parent


class Preset(msgspec.Struct, frozen=True):
    """Values by field of `RunConfig`, and one line that says what they are for. `sizes`: further
    ones, which depend on what else is set."""

    about: str
    values: dict[str, Any]
    sizes: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda _: {}


PRESETS: dict[str, Preset] = {
    "search-r1-local": Preset(
        "a search agent over bundled facts, with a small model, on this machine",
        {
            "env": "search-r1-local",
            "hf_checkpoint": str(_PACKAGE / "envs" / "search_r1" / "model"),
            "num_rollout": 40,
            "rollout_batch_size": 16,
            "n_samples_per_prompt": 8,
            "max_turns": 3,
            "rollout_max_response_len": 64,
            "rollout_max_context_len": 512,
            "eval_temperature": 0.0,
            "num_steps_per_rollout": 2,
            "max_tokens_per_gpu": 8192,
            "calculate_per_token_loss": True,
            "eps_clip": 0.2,
            "eps_clip_high": 0.28,
            "lr": 2e-4,
            "lr_warmup_iters": 5,
            "weight_decay": 0.0,
            "adam_beta2": 0.95,
            "actor_num_gpus_per_node": 1,
            "rollout_num_gpus": 1,
            "num_agent_workers": 1,
            "sglang_server_concurrency": 64,
        },
    ),
    "dapo": Preset(
        "clip-higher, mean over tokens, a penalty for long episodes, and no groups of equal "
        "rewards (arXiv 2503.14476)",
        dapo.VALUES,
        dapo.sizes,
    ),
    "vcpo": Preset(
        "for old tokens: the baseline of least variance, the weight of whole sequences, and "
        "smaller steps where few of them count (arXiv 2602.17616)",
        {
            "advantage_estimator": "opob",
            "tis_level": "sequence",
            "tis_clip": 8.0,
            "scale_lr_by_ess": True,
        },
    ),
}

DEFAULT = "search-r1-local"


def preset(name: str) -> Preset:
    """The preset of that name, or ConfigError with the nearest ones."""
    if name not in PRESETS:
        raise ConfigError(
            f"there is no preset {name!r}{nearest(name, PRESETS)}; presets: {', '.join(PRESETS)}"
        )
    return PRESETS[name]
