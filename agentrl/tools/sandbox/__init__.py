"""Code that the model writes, run apart from everything: `open_sandbox`, then `run`."""

import warnings

from agentrl.tools.sandbox.choice import Sandbox, open_sandbox
from agentrl.tools.sandbox.limits import SandboxLimits, SandboxResult

__all__ = ["Sandbox", "SandboxLimits", "SandboxResult", "open_sandbox"]

#: Names of version 0.1, which go in the next one.
_OLD = {"Limits": SandboxLimits, "Result": SandboxResult}


def __getattr__(name: str) -> type:
    if name not in _OLD:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    said = f"{__name__}.{name} is {_OLD[name].__name__} now; the old name goes in the next version"
    warnings.warn(said, DeprecationWarning, stacklevel=2)
    return _OLD[name]
