"""Open files: how many the greatest process of a run needs, and the limit under which it starts.

A turn in flight is one connection of its worker, one of its engine, and two of the router between
them. An episode may hold two more in its worker: a tool's pipes, a service, the two ends of an
agent's call to its model. Processes inherit the limit of the program, which raises its soft limit
as far as the hard one allows, and is refused where turns alone would not fit.
"""

import resource

import msgspec

from agentrl.config.conditions import CONDITIONS
from agentrl.config.run import RunConfig
from agentrl.errors import EnvironmentSetupError

__all__ = ["OpenFiles", "open_files", "raise_limit"]

#: What a process holds without any turn, the most that was seen in the default job with some room:
#: a learner rank or one of Ray's 128, the others 50.
_LEAST, _OWN = 192, 64
_PER_EPISODE = 2
#: As SGLang asks for its own. Programs that close every number below their limit stay quick.
_WANTED = 65536


class OpenFiles(msgspec.Struct, frozen=True):
    """`least`: what turns take, of which nothing can be spared. `most`: if every episode is in a
    tool as well. `turns` and `episodes` are those that may be open at once."""

    least: int
    most: int
    turns: int
    episodes: int


def open_files(config: RunConfig) -> OpenFiles:
    """What the greatest process of `config` opens. Of an evaluation only the room of workers is
    known here: how many tasks its sets have is not."""
    groups = (config.num_ahead + config.update_weights_interval) * config.rollout_batch_size
    held = config.num_agent_workers * config.max_concurrent_episodes
    may_evaluate = config.has_env and CONDITIONS["evaluation_sets"].holds(config)
    episodes = held if may_evaluate else min(groups * config.n_samples_per_prompt, held)
    turns = min(config.num_permits, episodes)
    least = max(_LEAST, _OWN + 2 * turns)
    on_worker = min(config.max_concurrent_episodes, episodes)
    most = max(least, _OWN + min(turns, on_worker) + _PER_EPISODE * on_worker)
    return OpenFiles(least, most, turns, episodes)


def raise_limit(config: RunConfig, *, dry_run: bool) -> list[str]:
    """Raise the soft limit of this process as far as `config` needs it, unless it is a dry run;
    returns notes. Nothing is done for a cluster that runs already: its limits are its own.

    Raises EnvironmentSetupError when the hard limit is too small.
    """
    if config.ray_address is not None:
        return []
    need = open_files(config)
    soft, hard = map(_finite, resource.getrlimit(resource.RLIMIT_NOFILE))
    if hard < need.least:
        raise EnvironmentSetupError(
            f"ulimit -n: a process may open {hard} files here (hard limit), and with {need.turns} "
            f"turns in flight it needs {need.least}, and {need.most} if all {need.episodes} "
            f"episodes are in a tool at once: raise it to {need.most} (ulimit -Hn, or limits.conf, "
            "or --ulimit nofile of a container), or lower --sglang-server-concurrency"
        )
    if soft < (wanted := min(hard, max(need.most, _WANTED))) and not dry_run:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if hard >= need.most:
        return []
    note = (
        f"ulimit -n: a process may open {hard} files here, and {need.most} would be needed if all "
        f"{need.episodes} episodes were in a tool at once: raise it, or lower "
        "--max-concurrent-episodes, if tools report too many open files"
    )
    return [note]


def _finite(limit: int) -> int:
    return 2**31 - 1 if limit == resource.RLIM_INFINITY else limit
