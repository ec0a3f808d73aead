"""`agentrl simulate`: its flags, what it tries, and the table it prints."""

import argparse
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from agentrl.sim import Result, Scenario

__all__ = ["ABOUT", "add_arguments", "simulate"]

ABOUT = """\
Says what a choice of GPU split, buffer size, push interval and staleness bound gives for your
lengths and latencies. The production buffer runs under virtual time; engines, workers and learner
are models, so the numbers compare choices and predict no hardware. Every combination of the lists
is a row, and the first row is synchronous training on all GPUs. For the same flags the table is
always the same.

    agentrl simulate --turns 8 --tool-s 10 1.5 --async-buffer-size 2 4 8 --rollout-num-gpus 8 12
    agentrl simulate runs/ID --tool-s 0.5 1 --token-s 0.01 --async-buffer-size 1 2 4

RUN is the directory of a run that was played: its episodes' tokens and turns, the seconds of its
iterations and pushes, and its own settings take the place of the defaults. It does not say how long
tools took, nor how fast an engine is.

columns:
  gpus         GPUs of the engines + of the learner
  policy       what becomes of tokens older than S: masked, or their groups dropped
  s/iteration  seconds of an iteration, after the warm-up
  speed        over the first row
  masked       share of sampled tokens that are older than S and leave the loss
  oldest       age in iterations of the oldest trained token
  slow tenth   trained / sampled tokens of the slowest tenth of the tasks, over the same of all
  idle         share of the time that the learner waits, and that an engine has nothing to do

exit codes:
  0    the table is whole
  2    the command line is wrong
  3    RUN has not ended
  65   RUN cannot be read, or has trained nothing
"""

_HEAD = (
    f"{'gpus':>7} {'B':>3} {'I':>3} {'S':>3} {'policy':>6} {'s/iteration':>11} {'speed':>6}"
    f" {'masked':>7} {'oldest':>6} {'slow tenth':>10} {'learner idle':>12} {'engine idle':>11}"
)
#: Flags without a default of their own: what RUN says, or else this.
_DEFAULTS: dict[str, Any] = {
    "rollout_num_gpus": None,
    "async_buffer_size": [4],
    "update_weights_interval": [1],
    "max_staleness": None,
    "staleness_policy": ["mask"],
    "num_gpus": 16,
    "rollout_num_gpus_per_engine": 1,
    "rollout_batch_size": 16,
    "n_samples_per_prompt": 8,
    "num_steps_per_rollout": 1,
    "sglang_server_concurrency": 64,
    "num_rollout": 20,
    "warm_up": 8,
    "seed": 0,
    "tokens": (1500.0, 0.7),
    "task_sigma": 0.7,
    "max_tokens": 16_000,
    "turns": 4,
    "tool_s": (2.0, 1.2),
    "token_s": 0.020,
    "request_s": 0.0001,
    "step_gpu_s": 480.0,
    "token_gpu_s": 0.0,
    "push_s": 3.0,
}
#: What RUN says of them, as one number or as one value to try.
_OF_RUN = (
    *("rollout_num_gpus_per_engine", "rollout_batch_size", "n_samples_per_prompt"),
    *("num_steps_per_rollout", "sglang_server_concurrency"),
)
_TRIED_OF_RUN = (
    *("rollout_num_gpus", "async_buffer_size", "update_weights_interval", "max_staleness"),
    "staleness_policy",
)
#: Flags that RUN leaves nothing to say about.
_KNOWN_OF_RUN = ("tokens", "task_sigma", "max_tokens", "turns")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `agentrl simulate`."""
    parser.add_argument("run", metavar="RUN", nargs="?", type=Path, help="Directory of a run")
    tried = parser.add_argument_group("what to try (lists; every combination is a row)")
    quarters = "GPUs of the engines; the others learn [default: 1/4, 1/2 and 3/4 of all]"
    _add(tried, "--rollout-num-gpus", _count, quarters, nargs="+")
    _add(
        tried,
        "--async-buffer-size",
        _natural,
        "B: iterations that generation may run ahead",
        nargs="+",
    )
    _add(
        tried, "--update-weights-interval", _count, "I: iterations between weight pushes", nargs="+"
    )
    _add(
        tried,
        "--max-staleness",
        _natural,
        "S: greatest age of a trained token in iterations [default: B + I - 1]",
        nargs="+",
    )
    _add(
        tried,
        "--staleness-policy",
        _policy,
        "What happens to older tokens: mask or drop",
        nargs="+",
        metavar="POLICY",
    )
    run = parser.add_argument_group("the run")
    _add(run, "--num-gpus", _count, "GPUs in all")
    _add(run, "--rollout-num-gpus-per-engine", _count, "GPUs of one engine")
    _add(run, "--rollout-batch-size", _count, "Groups in an iteration")
    _add(run, "--n-samples-per-prompt", _count, "Episodes in a group")
    _add(run, "--num-steps-per-rollout", _count, "Optimizer steps in an iteration")
    _add(run, "--sglang-server-concurrency", _count, "Turns of an engine at a time")
    _add(run, "--num-rollout", _count, "Iterations to play")
    _add(run, "--warm-up", _natural, "First iterations, which are not measured")
    _add(run, "--seed", _natural, "Seed of the workload")
    law: dict[str, Any] = {"nargs": 2, "metavar": ("MEDIAN", "SIGMA")}
    work = parser.add_argument_group("lengths and latencies (lognormal: MEDIAN SIGMA)")
    _add(work, "--tokens", _amount, "Sampled tokens of an episode, within a group", **law)
    _add(work, "--task-sigma", _amount, "Spread of sampled tokens between groups", metavar="X")
    _add(work, "--max-tokens", _count, "Most sampled tokens of an episode")
    _add(work, "--turns", _count, "Mean number of turns; 1 is no tools")
    _add(work, "--tool-s", _amount, "Seconds of a tool call", **law)
    machines = parser.add_argument_group("machines (seconds)")
    _add(machines, "--token-s", _amount, "Seconds that an engine takes for a token", metavar="X")
    _add(
        machines,
        "--request-s",
        _amount,
        "Seconds that an engine takes more for each turn in its batch",
        metavar="X",
    )
    _add(machines, "--step-gpu-s", _amount, "Seconds of one GPU for an optimizer step", metavar="X")
    more = "Seconds of one GPU for each sampled token of an iteration"
    _add(machines, "--token-gpu-s", _amount, more, metavar="X")
    _add(machines, "--push-s", _amount, "Seconds that engines stand still for a push", metavar="X")


def simulate(arguments: argparse.Namespace) -> int:
    """Try everything; a row is printed as soon as it is known. Raises ConfigError, and for RUN
    EnvironmentSetupError, StoreError and DataError."""
    from agentrl.sim import colocated_sync
    from agentrl.sim import scenarios as every
    from agentrl.sim import simulate as play

    given = {name: value for name, value in vars(arguments).items() if name in _DEFAULTS}
    facts = _DEFAULTS | _of_run(arguments.run, given) | given
    if facts["warm_up"] >= facts["num_rollout"]:
        raise ConfigError(
            f"--warm-up {facts['warm_up']} leaves nothing of --num-rollout {facts['num_rollout']}"
        )
    scenarios = list(every(facts))
    if "about" in facts:
        sys.stdout.write(f"{arguments.run}: {facts['about']}\n")
    base = colocated_sync(scenarios[0])
    sync = play(base, facts["warm_up"])
    sys.stdout.write(f"{_HEAD}\n{_line(base, sync, sync, 'sync')}\n")
    for scenario in scenarios:
        sys.stdout.flush()
        engines = scenario.num_engines * scenario.gpus_per_engine
        result = play(scenario, facts["warm_up"])
        split = f"{engines}+{scenario.num_learner_gpus}"
        sys.stdout.write(f"{_line(scenario, result, sync, split)}\n")
    return 0


def _of_run(run: Path | None, given: dict[str, Any]) -> dict[str, Any]:
    """What a recorded run says in the place of the defaults."""
    if run is None:
        return {}
    from agentrl.buffer.moment import read_moment
    from agentrl.sim import recall
    from agentrl.view.config import read_settings

    twice = [f"--{name.replace('_', '-')}" for name in _KNOWN_OF_RUN if name in given]
    if twice:
        raise ConfigError(f"{', '.join(twice)}: {run} says this; leave the flags or RUN out")
    settings = read_settings(run)
    if not (run / "ledger.db").exists():
        raise StoreError(f"{run} has no ledger.db: it is no directory of a run that was played")
    episodes = read_moment(run / "ledger.db").episodes
    found = recall(episodes, _lines(run / "metrics.jsonl"))
    learners = settings.get("actor_num_nodes", 1) * settings.get("actor_num_gpus_per_node", 1)
    steps = settings.get("num_steps_per_rollout", 1)
    return {
        **{name: settings[name] for name in _OF_RUN if name in settings},
        **{name: [settings[name]] for name in _TRIED_OF_RUN if name in settings},
        "num_gpus": learners + settings.get("rollout_num_gpus", 0),
        "step_gpu_s": found.train_s * learners / steps,
        "push_s": found.push_s,
        "played": found.played,
        "about": f"{found}; tools and engines as given",
    }


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} cannot be read: {error}") from error


def _line(scenario: "Scenario", result: "Result", sync: "Result", split: str) -> str:
    return (
        f"{split:>7} {scenario.async_buffer_size:>3} {scenario.update_weights_interval:>3}"
        f" {scenario.max_staleness:>3} {scenario.staleness_policy:>6} {result.iteration_s:>11.1f}"
        f" {sync.iteration_s / result.iteration_s:>5.2f}x {result.masked_share:>7.2%}"
        f" {result.max_trained_age:>6} {result.starvation_unmasked:>10.2f}"
        f" {result.learner_idle:>12.0%} {result.engine_idle:>11.0%}"
    )


def _add(group: argparse._ArgumentGroup, flag: str, kind: Any, text: str, **more: Any) -> None:
    default = _DEFAULTS[flag.removeprefix("--").replace("-", "_")]
    if default is not None:
        shown = default if isinstance(default, list | tuple) else [default]
        text += f" [default: {' '.join(map(str, shown))}]"
    more = {"metavar": "N", **more}
    group.add_argument(flag, type=kind, default=argparse.SUPPRESS, help=text, **more)


def _natural(text: str, least: int = 0) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} on")
    return int(text)


def _count(text: str) -> int:
    return _natural(text, least=1)


def _policy(text: str) -> str:
    if text not in ("mask", "drop"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither mask nor drop")
    return text


def _amount(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 on")
    return number
