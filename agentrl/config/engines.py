"""What SGLang and its router take and do less with than their names say, and what of it cannot
run: notes and refusals at the start."""

from collections.abc import Iterator, Mapping
from typing import Any

from agentrl.config.engine_groups import attention_ranks
from agentrl.config.engine_settings import ways_of_groups
from agentrl.config.run import RunConfig

__all__ = [
    "ROUTER_POLICY",
    "about_attention_ranks",
    "named_ranks",
    "notes_on_engines",
    "said_ranks",
    "shares_memory",
]

#: The router's policy unless the user names another.
ROUTER_POLICY = "manual"

#: Policies that read a setting of the router. Others take it and do nothing with it.
_READ_BY = {
    "cache_threshold": ("cache_aware",),
    "max_tree_size": ("cache_aware",),
    "balance_abs_threshold": ("cache_aware", "bucket"),
    "balance_rel_threshold": ("cache_aware", "bucket"),
}


def named_ranks(config: RunConfig) -> int:
    """Groups of an engine's devices of which a turn is told its own. 1: none is told; engines that
    have other numbers of them, or that hand turns on, share turns out among theirs by themselves.
    """
    ways = [way for _, way in ways_of_groups(config)]
    widths = {attention_ranks(way.sglang) for way in ways}
    return widths.pop() if len(widths) == 1 and not config.has_prefill_apart else 1


def shares_memory(config: RunConfig) -> bool:
    """Whether engines on the learner's host read a push from memory that they share with it. Each
    must have all of its ranks on one host. SGLang reads no memory for replicas (`dp_size`)."""
    return (
        config.colocate
        and int(config.sglang.get("dp_size") or 1) == 1
        and all(engine.size <= config.actor_num_gpus_per_node for engine in config.engines)
    )


def about_attention_ranks(config: RunConfig) -> Iterator[str]:
    """A line for each thing about data-parallel engines that cannot run."""
    replicas, width = int(config.sglang.get("dp_size") or 1), attention_ranks(config.sglang)
    if replicas > 1 and int(config.sglang.get("attn_dp_size") or 1) > 1:
        yield (
            f"--sglang-dp-size {replicas} and --sglang-attn-dp-size {width} are two spellings of "
            "one number; leave the first one out"
        )
    elif replicas > 1 and width == 1:
        yield (
            f"--sglang-dp-size {replicas} alone makes {replicas} replicas in one engine, and "
            "SGLang pushes no weights to replicas; add --sglang-enable-dp-attention, or make as "
            "many engines (--rollout-num-gpus)"
        )
    elif config.rollout_num_gpus_per_engine % width:
        yield (
            f"--rollout-num-gpus-per-engine {config.rollout_num_gpus_per_engine} is not a multiple "
            f"of the {width} groups that attend to requests of their own "
            f"({said_ranks(config.sglang)}); make it one"
        )
    if width > 1 and config.replays_engine_routes:
        yield (
            f"{said_ranks(config.sglang)} {width} and --use-rollout-routing-replay: SGLang keeps "
            "the experts of all groups in one place, and that each token is told its own was never "
            "compared; leave out one of the two"
        )


def said_ranks(sglang: Mapping[str, Any]) -> str:
    """The flag that says `attention_ranks`."""
    old = sglang.get("enable_dp_attention") and int(sglang.get("attn_dp_size") or 1) == 1
    return "--sglang-dp-size" if old else "--sglang-attn-dp-size"


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
    drafts = algorithm is not None and str(algorithm).upper() != "NGRAM"
    if drafts and not config.pushes_draft:
        yield (
            f"--sglang-speculative-algorithm {algorithm}: a weight push reaches the model that "
            "samples and not its draft. What is sampled stays right; as training goes on, fewer "
            "of the draft's tokens are accepted (--enable-mtp-training trains and pushes a draft "
            "that is the model's own, under EAGLE)"
        )
    method = config.sglang.get("load_balance_method", "auto")
    if method != "auto" and (named_ranks(config) > 1 or attention_ranks(config.sglang) == 1):
        yield (
            f"--sglang-load-balance-method {method}: no effect: a conversation keeps the group of "
            "ranks that has its cache, and new ones are given groups in turn"
        )
    if attention_ranks(config.sglang) == 1 and config.sglang.get("enable_dp_lm_head"):
        yield (
            "--sglang-enable-dp-lm-head: no effect without data-parallel attention "
            "(--sglang-enable-dp-attention with --sglang-dp-size)"
        )
