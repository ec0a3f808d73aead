"""Code that the model writes, run apart from everything: `open_sandbox`, then `run`."""

from agentrl.tools.sandbox.choice import Sandbox, open_sandbox
from agentrl.tools.sandbox.limits import Limits, Result

__all__ = ["Limits", "Result", "Sandbox", "open_sandbox"]
