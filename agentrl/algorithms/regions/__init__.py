"""Trust regions (`--trust-region`): which trained tokens keep their gradient. One rule a module."""
