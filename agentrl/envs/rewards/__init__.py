"""Rewards that ship: `--custom-rm-path NAME` is the function of `NAME.py`."""
