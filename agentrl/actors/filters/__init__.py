"""Dynamic filters that ship: `--dynamic-sampling-filter-path NAME` is the function of `NAME.py`."""
