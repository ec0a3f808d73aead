"""Rewards that ship: `--rm-type NAME` is the function of `NAME.py`."""
