"""Engines: how many turns they take, and how weights are pushed to them."""

from functools import partial
from typing import Annotated, Literal

from agentrl.config.facts import ACTS, BOTH, ENGINES, FREE, Port, flag
from agentrl.config.flags.placement import PlacementFlags

__all__ = ["ServingFlags"]

_flag = partial(
    flag, group="serving", on_resume=FREE, modes=ACTS, halves=ENGINES, reaches_weights=False
)
_pushed = partial(_flag, halves=BOTH)


class ServingFlags(PlacementFlags, frozen=True, kw_only=True):
    sglang_server_concurrency: Annotated[
        int,
        _flag(
            "Turns in flight on one engine; with data-parallel attention on each of its groups of "
            "ranks",
            ge=1,
        ),
    ] = 512
    rollout_external_engine_addrs: Annotated[
        list[str],
        _flag(
            "SGLang servers that somebody else started, as HOST:PORT ...: the engines of the run, "
            "which starts none, gives them its weights, and leaves them running",
            holds="server",
        ),
    ] = []
    rollout_external_api_key_var: Annotated[
        str | None,
        _flag(
            "Environment variable that holds the key which the servers of "
            "--rollout-external-engine-addrs want",
            needs="external_engines",
        ),
    ] = None
    sglang_router_ip: Annotated[
        str | None,
        _flag(
            "Address of a router (sglang-router) that runs already: engines are added to it, and "
            "the run starts none; with --sglang-router-port",
            holds="server",
        ),
    ] = None
    sglang_router_port: Annotated[
        Port | None, _flag("Port of the router of --sglang-router-ip")
    ] = None
    update_weight_buffer_size: Annotated[int, _pushed("Bytes of a weight bucket", ge=1)] = (
        512 * 1024**2
    )
    update_weights_timeout: Annotated[
        float, _flag("Deadline in seconds of each call of a weight push", gt=0)
    ] = 300.0
    update_weights_fleet_size: Annotated[int, _pushed("Engines in one collective", ge=1)] = 16
    kv_across_pushes: Annotated[
        Literal["recompute", "keep"],
        _flag(
            "What a push does to the KV cache: engines drop it and compute turns in flight anew "
            "(recompute), or they keep it as older weights filled it (keep), which saves the "
            "prefill; the recorded log-probabilities are right in both",
            halves=frozenset(),
        ),
    ] = "recompute"
    kv_cache_versions: Annotated[
        int,
        _flag(
            "Versions in a row whose turns share the KV cache of their prompts: with 1 a prompt is "
            "computed anew after each push, with N after each Nth push",
            ge=1,
            needs="kept_caches",
        ),
    ] = 1
    check_weight_update_equal: Annotated[
        bool,
        _pushed(
            "After each push compare every engine's weights with the learner's (engines of one "
            "rank, on the CPU)"
        ),
    ] = False
    update_weight_transport: Annotated[
        Literal["nccl", "disk"],
        _pushed(
            "How weights reach engines: over a collective (NCCL on GPUs, gloo on the CPU), or as "
            "files in --update-weight-disk-dir, which are written while turns go on"
        ),
    ] = "nccl"
    update_weight_mode: Annotated[
        Literal["full", "delta"],
        _pushed(
            "What a push through a disk writes: all weights (full), or what changed since the "
            "push before it (delta), with which engines patch "
            "--update-weight-local-checkpoint-dir"
        ),
    ] = "full"
    update_weight_disk_dir: Annotated[
        str | None,
        _pushed(
            "Folder that learner and engines share; each run writes into a folder of its own "
            "below it",
            needs="disk_pushes",
            holds="folder",
        ),
    ] = None
    update_weight_disk_keep_files: Annotated[
        bool,
        _pushed(
            "Keep the files of every push (default: those of the last push, until the run ends)",
            needs="disk_pushes",
        ),
    ] = False
    update_weight_local_checkpoint_dir: Annotated[
        str | None,
        _pushed(
            "Folder on each engine's own host, for a copy of the weights that a push brings up to "
            "date while turns go on (default: engines read the shared files)",
            needs="disk_pushes",
            holds="folder",
        ),
    ] = None
    update_weight_delta_encoding: Annotated[
        Literal["xor", "overwrite"],
        _pushed(
            "How a change is written: as new ^ old (xor), or as positions and new bytes, which is "
            "larger (overwrite)",
            needs="delta_pushes",
        ),
    ] = "xor"
    update_weight_delta_checksum: Annotated[
        Literal["xxh3-128", "adler32"],
        _pushed("Checksum that each patched tensor is compared with", needs="delta_pushes"),
    ] = "xxh3-128"
