"""Hosts and devices. A checkpoint is shared out anew, so a continued run may change all of it."""

from functools import partial
from typing import Annotated, Any

from agentrl.config.facts import ACTS, ENGINES, FREE, LEARNER, POLICY, Count, flag
from agentrl.config.flags.optimizer import OptimizerFlags

__all__ = ["PlacementFlags"]

_flag = partial(flag, group="placement", on_resume=FREE)


class PlacementFlags(OptimizerFlags, frozen=True, kw_only=True):
    ray_address: Annotated[
        str | None,
        _flag("Address of a running Ray cluster (default: start one here)", reaches_weights=False),
    ] = None
    actor_num_nodes: Annotated[int, _flag("Nodes of the learner", ge=1, halves=LEARNER)] = 1
    actor_num_gpus_per_node: Annotated[
        int, _flag("Learner ranks on a node (1 on a host without GPU)", ge=1, halves=LEARNER)
    ] = 8
    rollout_num_gpus: Annotated[
        Count | None,
        _flag(
            "Devices of all engines (default: as many as one engine needs, or as --sglang-config "
            "says; under --colocate the learner's)",
            modes=ACTS,
            needs="started_engines",
            halves=ENGINES,
        ),
    ] = None
    rollout_num_gpus_per_engine: Annotated[
        int, _flag("Devices of one engine", modes=ACTS, ge=1, halves=ENGINES)
    ] = 1
    sglang_config: Annotated[
        dict[str, Any],
        _flag(
            "File of engines of several kinds (YAML or TOML, in slime's form): groups with a type, "
            "devices and SGLang settings of their own (docs/cluster.md)",
            modes=ACTS,
            holds="settings",
            halves=ENGINES,
        ),
    ] = {}
    prefill_num_servers: Annotated[
        Count | None,
        _flag(
            "Number of engines that prefill prompts for the others, which decode (needs GPUs, and "
            "generation that waits for the learner, as in train.py)",
            modes=ACTS,
            halves=ENGINES,
        ),
    ] = None
    colocate: Annotated[
        bool,
        _flag(
            "Let learner and engines share devices and take turns on them: engines give up their "
            "memory while the learner trains, and the learner while they generate (needs "
            "generation that waits for the learner, as in train.py)",
            modes=POLICY,
        ),
    ] = False
    offload_train: Annotated[
        bool,
        _flag(
            "Under --colocate the learner moves weights, gradients and optimizer to the host "
            "while engines generate; without this, it keeps them on its devices",
            modes=POLICY,
            needs="colocated",
        ),
    ] = True
    offload_rollout: Annotated[
        bool,
        _flag(
            "Under --colocate engines release weights and cache while the learner trains; without "
            "this, they keep them and only wait",
            modes=POLICY,
            needs="colocated",
        ),
    ] = True
    env_vars: Annotated[
        list[str],
        _flag(
            "Environment variables of every process that the run starts, on every node: "
            "NAME=VALUE, or NAME to pass on the value that it has here, which is written nowhere; "
            "given again, it adds to them",
            collects=1,
        ),
    ] = []
    train_env_vars: Annotated[
        dict[str, Any],
        _flag("Further environment variables of the learner's ranks, as JSON"),
    ] = {}
    port_range: Annotated[
        str | None,
        _flag(
            "TCP ports FIRST-LAST on which processes of the run may listen, on every node "
            "(default: any below those of outgoing connections). Collectives take those of the "
            "kernel (docs/cluster.md)",
            reaches_weights=False,
        ),
    ] = None
    place_timeout_s: Annotated[
        float,
        _flag(
            "Seconds that a run, or its dry run, waits until other jobs on the cluster leave it "
            "the devices that it needs",
            gt=0,
            needs="joined",
            reaches_weights=False,
        ),
    ] = 300.0
    node_wait_s: Annotated[
        float,
        _flag(
            "Seconds that a run waits for another node after it lost one that it needs: the node "
            "of a learner rank, or of the last engines. 0 ends the run at once. --resume continues "
            "a run that has ended",
            ge=0,
            needs="joined",
            reaches_weights=False,
        ),
    ] = 300.0
    call_timeout_s: Annotated[
        float,
        _flag(
            "Deadline in seconds of a short call: to the host on a node, to the buffer (rows have "
            "twice as long), to the router (half as long), and of the meeting of learner and "
            "engines before a push. Raise it where nodes or their network are slow "
            "(docs/cluster.md)",
            gt=0,
            reaches_weights=False,
        ),
    ] = 60.0
    start_timeout_s: Annotated[
        float,
        _flag(
            "Deadline of each process's start, of the engines until they are ready, and of the "
            "first push after it",
            gt=0,
            reaches_weights=False,
        ),
    ] = 600.0
