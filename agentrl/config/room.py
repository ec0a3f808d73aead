"""Whether the place of checkpoints has room for one, before hours are trained that cannot be saved;
and whether the memory that processes of this host share has room for a push.

The size is computed from the headers of the model's weights; where parameters may be frozen, their
own bytes alone are counted. A further checkpoint is written before an older one is removed, so a
run that goes on needs the same. A dry run notes what a run would be refused for: it may be of a
place that is emptied until then.
"""

import math
import shutil
from collections.abc import Collection
from pathlib import Path

from agentrl.config.conditions import has_shipped_estimator
from agentrl.config.engines import shares_memory
from agentrl.config.freezing import freezes
from agentrl.config.learner_memory import checkpoint_bytes
from agentrl.config.plan import in_units
from agentrl.config.run import RunConfig
from agentrl.config.weights import num_parameters, read_shapes
from agentrl.config.writable import nearest_there
from agentrl.errors import EnvironmentSetupError

__all__ = ["check_room", "check_shared_memory", "lack_of_shared_memory"]

#: Where the kernel keeps memory that processes share. A container has 64 MiB of it unless told.
_SHARED = Path("/dev/shm")  # noqa: S108 - of the system, and only looked at


def check_room(
    config: RunConfig, *, dry_run: bool, models: Collection[str] | None = None
) -> list[str]:
    """Notes for the user. Raises EnvironmentSetupError where no checkpoint has room. Without
    `--save` checkpoints lie in the run's directory, which on a cluster may be another node's.
    `models`: those that an estimator of the user's needs; nothing is told of one that was not asked
    yet."""
    if models is None and not has_shipped_estimator(config):
        return []
    if config.eval_only or config.plays_only:
        return []
    flag, place = "--save", config.save
    if place is None:
        if config.ray_address is not None:
            return []
        is_continued = config.is_continued
        flag, place = ("--resume", config.resume) if is_continued else ("--run-dir", config.run_dir)
    needed = _least_bytes(config, models)
    free = shutil.disk_usage(nearest_there(Path(place))).free
    if free >= needed:
        return []
    said = (
        f"{flag} {place}: {in_units(free)} are free there, and a checkpoint of this model takes "
        f"about {in_units(needed)}; make room, or name another place"
    )
    if dry_run:
        return [said]
    raise EnvironmentSetupError(said)


def check_shared_memory(config: RunConfig, *, dry_run: bool) -> list[str]:
    """Notes for the user. Raises EnvironmentSetupError where two buckets of a push have no room in
    memory that learner and engines share. On a cluster the node of rank 0 is asked."""
    if not shares_memory(config) or config.ray_address is not None or not _SHARED.is_dir():
        return []
    said = lack_of_shared_memory(config, shutil.disk_usage(_SHARED).free)
    if not said or dry_run:
        return [said] if said else []
    raise EnvironmentSetupError(said)


def lack_of_shared_memory(config: RunConfig, free: int) -> str:
    """What to say of a host of learner rank 0 where so many bytes are free in `/dev/shm`; empty
    where a push has room."""
    if not shares_memory(config):
        return ""
    width = _width(config)
    tensors = [width * math.prod(shape) for shape in read_shapes(_model(config)).values()]
    bucket = max([config.update_weight_buffer_size, *tensors])  # a larger one travels alone
    needed = 2 * min(bucket, sum(tensors))
    if free >= needed:
        return ""
    return (
        f"--colocate: {in_units(free)} are free in {_SHARED}, and a push takes up to "
        f"{in_units(needed)} of it at once; give the host more (docker run --shm-size), or send "
        "less at once (--update-weight-buffer-size)"
    )


def _model(config: RunConfig) -> Path:
    return Path(str(config.hf_checkpoint))


def _width(config: RunConfig) -> int:
    """Bytes of a parameter in the learner."""
    return 2 if config.megatron.get("bf16", False) else 4


def _least_bytes(config: RunConfig, models: Collection[str] | None) -> int:
    """0 where nobody knows yet how large the model is."""
    parameters = num_parameters(read_shapes(_model(config))) or 0
    if freezes(config):
        return parameters * _width(config)
    return checkpoint_bytes(config, parameters, models)
