"""What SGLang and its router take and do less with than their names say: notes at the start."""

from collections.abc import Iterator

from agentrl.config.run import RunConfig

__all__ = ["ROUTER_POLICY", "notes_on_engines"]

#: The router's policy unless the user names another.
ROUTER_POLICY = "manual"

#: Policies that read a setting of the router. Others take it and do nothing with it.
_READ_BY = {
    "cache_threshold": ("cache_aware",),
    "max_tree_size": ("cache_aware",),
    "balance_abs_threshold": ("cache_aware", "bucket"),
    "balance_rel_threshold": ("cache_aware", "bucket"),
}


def notes_on_engines(config: RunConfig) -> Iterator[str]:
    """What will run but deserves a look."""
    policy = config.router.get("policy", ROUTER_POLICY)
    for key, readers in _READ_BY.items():
        if key in config.router and policy not in readers:
            yield (
                f"--router-{key.replace('_', '-')}: no effect under --router-policy {policy}; it "
                f"is read by {' and '.join(readers)} only"
            )
    algorithm = config.sglang.get("speculative_algorithm")
    if algorithm is not None and str(algorithm).upper() != "NGRAM":
        yield (
            f"--sglang-speculative-algorithm {algorithm}: a weight push reaches the model that "
            "samples and not its draft. What is sampled stays right; as training goes on, fewer "
            "of the draft's tokens are accepted"
        )
