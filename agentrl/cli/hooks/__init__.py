"""Hooks, functions of the user's that a flag names: which there are, and how one is tried."""
