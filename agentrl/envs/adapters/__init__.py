"""Environments of other projects as an `Env`; each imports its package when it is asked for."""
