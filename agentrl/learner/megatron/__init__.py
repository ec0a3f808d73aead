"""The Megatron-core training backend, and its rehearsal without any rank.

Both are loaded on first use, behind `compat.install()`: megatron-core must not be imported before
it, and the small modules here (settings, schedule) stay free of torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentrl.learner.megatron.backend import MegatronBackend
    from agentrl.learner.megatron.rehearsal import rehearse

__all__ = ["MegatronBackend", "rehearse"]

_MODULES = {"MegatronBackend": "backend", "rehearse": "rehearsal"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from agentrl.learner.megatron import compat

    compat.install()
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
