"""One learner rank of a test: `worker.py RANK FILE`. Plays each job of the file on a backend of
its own."""

import functools
import json
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch.nn.attention import bias

from agentrl.config.megatron import MegatronSettings
from agentrl.config.run import RunConfig
from agentrl.config.stages import stages_of_a_rank
from agentrl.learner.megatron import MegatronBackend, parallel, rehearse
from agentrl.learner.megatron.forced_routes import Skew, forced_routes
from agentrl.learner.megatron.rehearsal import footprint_here, lengths_of
from agentrl.models.registry import open_model


def main(rank: int, jobs: list[dict[str, Any]]) -> None:
    from tests.parity import jobs as plays
    from tests.parity import leases

    for job in jobs:
        cfg = RunConfig(**job["config"])
        if "longest" in job:
            _measure(cfg, rank, job)
            continue
        backend = MegatronBackend(
            cfg,
            Path(job["model_dir"]),
            rank=rank,
            world_size=cfg.num_learner_ranks,
            master_address="127.0.0.1",
            master_port=_agreed_port(job["target"], rank),
            num_training_steps=None,
            models=job.get("models", ()),
        )
        if "script" in job:
            plays.follow(backend, job["script"])
        elif "leases" in job:
            leases.play(backend, cfg, Path(job["target"]))
        else:
            plays.play(backend, Path(job["target"]))
        backend.close()


def _mask(queries: int, keys: int) -> torch.Tensor:
    return torch.ones((queries, keys), dtype=torch.bool).tril(keys - queries)


def _use_counts(tensors: Sequence[Any]) -> list[int]:
    return [each._use_count() for each in tensors]


@functools.cache
def _let_all_go() -> None:
    """Have `_let_go` of collectives in every module that has a name for them."""
    for original in (
        dist.all_reduce,
        dist.all_to_all_single,
        dist.all_gather_into_tensor,
        dist.reduce_scatter_tensor,
    ):
        other = _let_go(original)
        for module in list(sys.modules.values()):
            for name in [name for name, value in vars(module).items() if value is original]:
                setattr(module, name, other)


def _let_go(collective: Callable[..., Any]) -> Callable[..., Any]:
    """The same, over when gloo's threads have let go of its tensors. They hold them for a moment
    after it is done, so a peak of what is alive would be by chance."""

    def call(*args: Any, **named: Any) -> Any:
        held = [each for each in (*args, *named.values()) if isinstance(each, torch.Tensor)]
        before = _use_counts(held)
        work = collective(*args, **named)
        deadline = time.monotonic() + 60
        while work is None and before != _use_counts(held):
            assert time.monotonic() < deadline
            time.sleep(0.0001)
        return work

    return call


def _measure(cfg: RunConfig, rank: int, job: dict[str, Any]) -> None:
    """Footprints of this rank in TARGET.RANK.json: of a real step, and of an imagined one."""
    settings = MegatronSettings.from_config(cfg)
    architecture = open_model(Path(job["model_dir"]), None).architecture
    # Under a dispatch mode torch cannot make the mask that it names; this is what it makes of it.
    vars(bias)["causal_lower_right"] = _mask
    _let_all_go()
    parallel.open_groups(
        settings,
        rank=rank,
        world_size=cfg.num_learner_ranks,
        address="127.0.0.1",
        port=_agreed_port(job["target"], rank),
        seed=cfg.seed,
        stages_of_a_rank=stages_of_a_rank(architecture.num_layers, settings),
    )
    lengths = lengths_of(cfg.micro_batch_tokens, job["longest"], settings)
    imbalance = job["imbalance"]
    with forced_routes(Skew(imbalance, settings.expert_model_parallel_size)):
        found = [footprint_here(cfg, settings, architecture, lengths)]
    parallel.close_groups()
    if rank in (0, cfg.num_learner_ranks - 1):
        found.append(rehearse(cfg, architecture, rank, job["longest"], imbalance))
        Path(f"{job['target']}.{rank}.json").write_bytes(msgspec.json.encode(found))


def _agreed_port(target: str, rank: int) -> int:
    """A port chosen just before it is used: one reserved earlier may have gone to a collective's
    own connection meanwhile."""
    path = Path(f"{target}.port")
    if rank == 0:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        path.with_suffix(".new").write_text(str(port))
        path.with_suffix(".new").rename(path)
    while not path.exists():
        time.sleep(0.01)
    return int(path.read_text())


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    main(int(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()))
