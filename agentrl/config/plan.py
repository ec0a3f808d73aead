"""`--dry-run`: what a configuration will start, how far it may run ahead, and what it needs.

Nothing is started, and a cluster (`--ray-address`) is not asked for its devices; sizes are computed
from the model's files. Formulas are those of the design: at most (min(B, S) + I) x N groups are
charged at once.
"""

from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec

from agentrl.columns import TOKEN_BYTES
from agentrl.config.descriptors import open_files
from agentrl.config.device_defaults import for_device
from agentrl.config.engine_groups import PLACEHOLDER, EngineGroup
from agentrl.config.env_vars import without_secret_values
from agentrl.config.eval_sets import engine_context, eval_sets
from agentrl.config.external_engines import engine_urls
from agentrl.config.freezing import freezes
from agentrl.config.learner_memory import learner_bytes
from agentrl.config.mixture import ways_of
from agentrl.config.model import ModelSummary, read_model
from agentrl.config.run import RunConfig
from agentrl.config.toml import dump_config
from agentrl.visible import shown_url

__all__ = ["RunCapacity", "capacity", "describe", "in_units"]


class RunCapacity(msgspec.Struct, frozen=True):
    """How much work the parts of a run can hold at once. Lengths are upper bounds."""

    permits: int
    held_episodes: int
    charged_groups: int
    charged_episodes: int
    context: int | None
    kv_tokens: int | None
    stored_bytes: int | None


def capacity(config: RunConfig, model: ModelSummary) -> RunCapacity:
    """The sizes that follow from `config` for `model`."""
    groups, sets = config.num_charged, eval_sets(config)
    episodes = groups * config.n_samples_per_prompt
    lengths = [n for n in (engine_context(config, sets), model.max_context) if n is not None]
    context = min(lengths) if lengths else None
    widest = max(map(config.attention_ranks, config.engine_groups), default=1)
    turns = widest * config.sglang_server_concurrency
    return RunCapacity(
        permits=config.num_permits,
        held_episodes=config.num_agent_workers * config.max_concurrent_episodes,
        charged_groups=groups,
        charged_episodes=episodes,
        context=context,
        kv_tokens=context * min(turns, episodes) if context else None,
        stored_bytes=context * episodes * TOKEN_BYTES if context else None,
    )


def describe(config: RunConfig, models: Collection[str] | None = None) -> str:
    """The page of `--dry-run`: resolved run, placement, capacity, memory. `models`: those that the
    algorithm needs beside the policy; None: as flags tell."""
    model = read_model(Path(str(config.hf_checkpoint)))
    sizes = capacity(config, model)
    sections = {
        "run": dump_config(without_secret_values(config)).splitlines(),
        "placement": list(_placement(config)),
        # dialogues are there already: nothing is sampled ahead, and no token has an age
        "asynchrony": list(_asynchrony(config)) if config.has_env else [],
        "capacity": list(_capacity(config, sizes)),
        "memory and disk": list(_memory(config, model, sizes, models)),
    }
    parts = [
        "\n".join([f"{name}:", *(f"  {line}".rstrip() for line in lines)])
        for name, lines in sections.items()
        if lines
    ]
    return "\n\n".join(parts) + "\n\nnothing was started (--dry-run)\n"


def _placement(config: RunConfig) -> Iterator[str]:
    nodes, ranks = config.actor_num_nodes, config.actor_num_gpus_per_node
    if config.plays_only:
        yield "learner   none (--debug-rollout-only)"
    else:
        yield f"learner   {config.num_learner_ranks} ranks ({nodes} nodes x {ranks})"
    if not config.has_env:
        yield "engines   none: --loss-type sft_loss imitates the dialogues of --prompt-data"
    elif not config.has_engines:
        yield "engines   none: --load-debug-rollout-data trains on files"
    else:
        yield from _engines(config)
        if engines := config.eval_engines:
            size = engines[0].size
            yield f"          {len(engines)} SGLang of {size} devices for evaluations (apart)"
        for url in map(shown_url, engine_urls(config)):
            yield f"          {url}, which somebody else started and stops"
        envs = dict.fromkeys(str(way.env) for way in ways_of(config))
        yield f"services  those of --env {', '.join(envs)}"
    yield f"workers   {len(config.worker_names)} agent workers, 1 buffer"
    yield f"devices   {_devices(config)}"


def _engines(config: RunConfig) -> Iterator[str]:
    groups = config.engine_groups
    if len(groups) == 1:
        (group,) = groups
        yield f"engines   {group.num_engines} SGLang{_each(config, group)} behind 1 router"
        return
    yield f"engines   {config.num_engines} SGLang behind 1 router:"
    for group in groups:
        if group.kind == PLACEHOLDER:
            yield f"          {group.num_gpus} devices without an engine ({group.place})"
            continue
        kind = "" if group.kind == "regular" else f" {group.kind}"
        own = "".join(f", {key} {value}" for key, value in group.overrides.items())
        yield f"          {group.num_engines}{kind}{_each(config, group)}{own}"


def _each(config: RunConfig, group: EngineGroup) -> str:
    """What an engine of a group has."""
    width = config.attention_ranks(group)
    apart = f" in {width} groups of ranks" if width > 1 else ""
    return f" of {group.size} devices{apart}"


def _devices(config: RunConfig) -> str:
    where = f"the cluster at {config.ray_address}" if config.ray_address else "this host"
    if config.device == "cpu":
        return f"none: all of it runs on the CPU of {where}"
    num_ranks = 0 if config.plays_only else config.num_learner_ranks
    needed = num_ranks + config.num_engine_devices
    gpus = f"{needed} GPUs of {where}"
    if config.device == "cuda":
        return gpus
    return f"{gpus}, if it has any that torch and SGLang can use there; else its CPU"


def _asynchrony(config: RunConfig) -> Iterator[str]:
    yield f"B = {config.async_buffer_size} iterations ahead (--async-buffer-size)"
    interval = config.update_weights_interval
    yield f"I = {interval} iterations from push to push (--update-weights-interval)"
    yield f"S = {config.staleness_bound} iterations: oldest trained token (--max-staleness)"
    if config.staleness_policy == "drop":
        yield "    a group with an older one is dropped, its task minted again twice at the most"
    if not config.partial_rollout:
        yield "    a turn that a push has met is sampled again, twice at the most"


def _most_charged(config: RunConfig) -> str:
    ahead = "(min(B, S) + I) x N"
    return (
        "Q"
        if config.num_charged
        > config.rollout_batch_size * (config.num_ahead + config.update_weights_interval)
        else ahead
    )


def _capacity(config: RunConfig, sizes: RunCapacity) -> Iterator[str]:
    n, per = config.rollout_batch_size, config.n_samples_per_prompt
    steps = config.num_steps_per_rollout
    yield f"iteration {n} groups x {per} episodes = {n * per}, in {steps} optimizer steps"
    yield (
        f"charged   at most {_most_charged(config)} = {sizes.charged_groups} groups, "
        f"{sizes.charged_episodes} episodes"
    )
    yield f"episodes  workers hold {sizes.held_episodes} at once"
    if config.has_engines:
        yield f"turns     engines take {sizes.permits} at once (permits)"
    if config.over_sampling_batch_size is not None:
        yield (
            f"          at least {config.over_sampling_batch_size} groups are in the making for "
            "the next iteration (--over-sampling-batch-size)"
        )
        if config.gives_up_surplus:
            yield "          what is left over when it is full is given up (surplus)"
    if sizes.charged_episodes < sizes.permits:
        yield (
            f"          only {sizes.charged_episodes} episodes may be open: "
            f"{sizes.permits - sizes.charged_episodes} permits stay free"
        )
    files = open_files(config)
    yield (
        f"files     one process opens {files.least} at the least, {files.most} if every episode is "
        "in a tool (ulimit -n)"
    )
    if sizes.context is not None:
        turn = f", of which a turn samples at most {config.rollout_max_response_len}"
        yield f"context   {sizes.context} tokens{turn if config.has_engines else ''}"


def _memory(
    config: RunConfig, model: ModelSummary, sizes: RunCapacity, models: Collection[str] | None
) -> Iterator[str]:
    yield f"model     {model.architecture}" + (
        f", {model.num_parameters:,} parameters" if model.num_parameters else ""
    )
    if model.num_parameters:
        yield f"learner   {_learner(config, model.num_parameters, model.num_in_experts, models)}"
        yield "          `agentrl plan`, with these flags, says what a step takes beside it"
        if config.has_engines:
            engine = in_units(2 * model.num_parameters)
            yield f"engine    {engine} of weights at 16 bits, twice that at 32"
    if model.kv_values_per_token and sizes.kv_tokens and config.has_engines:
        cache = model.kv_values_per_token * sizes.kv_tokens
        yield (
            f"KV cache  {sizes.kv_tokens:,} tokens if every turn on an engine is of full length: "
            f"{in_units(2 * cache)} at 16 bits, {in_units(4 * cache)} at 32"
        )
    limit = f"limit {in_units(config.buffer_disk_limit)} (--buffer-disk-limit)"
    if sizes.stored_bytes is not None:
        full = in_units(sizes.stored_bytes)
        yield f"store     {full} if every open episode is of full length; {limit}"
    else:
        yield f"store     {limit}"


def _learner(
    config: RunConfig, num_parameters: int, num_in_experts: int, models: Collection[str] | None
) -> str:
    """What a rank holds; where nobody knows yet whether it is on a GPU, on that as well."""
    ranks = {"": config}
    if config.device == "auto":
        ranks["; on GPUs "] = for_device(config, "cuda")
    held = {
        where: in_units(learner_bytes(on, num_parameters, num_in_experts, models))
        for where, on in ranks.items()
    }
    here, *there = (f"{where}{size}" for where, size in held.items())
    most = " at most (what is frozen has weights alone)" if freezes(config) else ""
    return f"{here} of weights, gradients and optimizer on each rank{''.join(there)}{most}"


def in_units(num_bytes: int) -> str:
    """A size for people to read."""
    for unit, scale in (("TiB", 1024**4), ("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:.1f} {unit}"
    return f"{num_bytes} bytes"
