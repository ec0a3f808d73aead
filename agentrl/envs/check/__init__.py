"""Checks of user code: what a run looks at before it starts, and `env check`."""
