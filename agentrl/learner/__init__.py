"""Turns leases of trajectories into weights, and publishes them.

Nothing is imported here: the flags of a run are checked against parts of this room without torch.
"""
