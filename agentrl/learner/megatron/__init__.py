"""The Megatron-core training backend.

`MegatronBackend` is loaded on first use, behind `compat.install()`: megatron-core must not be
imported before it, and the small modules here (settings, schedule) stay free of torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentrl.learner.megatron.backend import MegatronBackend

__all__ = ["MegatronBackend"]


def __getattr__(name: str) -> Any:
    if name != "MegatronBackend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from agentrl.learner.megatron import compat

    compat.install()
    from agentrl.learner.megatron.backend import MegatronBackend

    return MegatronBackend
