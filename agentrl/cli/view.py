"""`agentrl view`: its flags, and where what it finds goes."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.cli.output import until_the_reader_leaves
from agentrl.errors import ConfigError, EnvironmentSetupError

if TYPE_CHECKING:
    from agentrl.view.choice import Choice

__all__ = ["ABOUT", "add_arguments", "view"]

_ERROR_CHARS = 200

ABOUT = """\
Shows episodes of the run in RUN as conversations, with tools, reward, advantage and weight
versions. Without a choice: the three best and the three worst episodes of the newest lease.
Trajectories are kept after training up to --keep-trajectories bytes; of older ones only the
ledger's facts are left. Reads only; of a run that is still going on it shows this moment.

    agentrl view runs/ID --failed --last 5              why the last five failed
    agentrl view runs/ID --task rows:17                 how often a task was played, and how well
    agentrl view runs/ID --json | jq -s 'map(.reward)'  every episode, for a program

exit codes:
  0    shown, or no episode fits: none has failed, or none is done yet
  2    the command line is wrong
  3    the tokenizer is missing, FILE cannot be written, or there is no room to copy the ledger
  65   no ledger that can be read; no such group, lease or task; or what was asked for is not kept
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `agentrl view`."""
    parser.add_argument(
        "run",
        metavar="RUN",
        type=Path,
        help="Run directory, such as runs/ID; or a file of --save-debug-rollout-data or "
        "--save-debug-train-data, of which no flag but --tokens chooses anything",
    )
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--group", metavar="ID", help="All episodes of a group, such as 00000007")
    choice.add_argument("--lease", metavar="K", type=_count, help="All episodes of lease K")
    choice.add_argument("--last", metavar="N", type=_count, help="The N last kept episodes")
    choice.add_argument(
        "--best", metavar="N", type=_count, help="N kept episodes of highest reward"
    )
    choice.add_argument(
        "--worst", metavar="N", type=_count, help="N kept episodes of lowest reward"
    )
    parser.add_argument(
        "--failed",
        action="store_true",
        help="Only episodes that did not end done, or whose group failed",
    )
    parser.add_argument("--task", metavar="ID", help="Only episodes of this task")
    parser.add_argument(
        "--tokens",
        action="store_true",
        help="Every token with kind, version, age, logprob and advantage",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--html", metavar="FILE", type=Path, help="Write one page to FILE instead")
    form.add_argument(
        "--json",
        action="store_true",
        help="Write one JSON object a line instead, without conversations (without a choice: of "
        "every episode): group, index, task, attempt, lease, state, fate, outcome, stop_reason, "
        "env, part, reward, advantage, roles, metrics, versions, turns, tokens, sampled, wall_s, "
        "error, reason",
    )


def view(arguments: argparse.Namespace) -> int:
    """Show what was asked for. Raises ConfigError, StoreError or EnvironmentSetupError, see
    `ABOUT`."""
    from agentrl.view.choice import Choice
    from agentrl.view.episodes import read_episodes, read_facts
    from agentrl.view.html import page
    from agentrl.view.json_lines import line
    from agentrl.view.text import print_episodes
    from agentrl.view.tokenizer import load_vocab

    if arguments.run.is_file():
        return _view_file(arguments)
    if arguments.json and arguments.tokens:
        raise ConfigError("--json is of episodes, not of tokens: leave out --tokens")
    choice = Choice(
        group=arguments.group,
        lease=arguments.lease,
        last=arguments.last,
        best=arguments.best,
        worst=arguments.worst,
        failed=arguments.failed,
        task=arguments.task,
        all=arguments.json,
    )
    read = read_facts if arguments.json else read_episodes
    episodes = read(arguments.run, choice)
    if not episodes:
        sys.stderr.write(f"agentrl: {arguments.run} has {_nothing(arguments.run, choice)}\n")
        return 0
    if arguments.json:
        with until_the_reader_leaves():
            sys.stdout.writelines(line(episode).decode() + "\n" for episode in episodes)
            sys.stdout.flush()
        return 0
    vocab = load_vocab(arguments.run)
    if arguments.html is None:
        with until_the_reader_leaves():
            print_episodes(sys.stdout, episodes, vocab, tokens=arguments.tokens)
            sys.stdout.flush()
        return 0
    title = f"agentrl run {arguments.run.resolve().name}"
    text = page(title, episodes, vocab, tokens=arguments.tokens)
    try:
        arguments.html.write_text(text, encoding="utf-8")
    except OSError as error:
        raise EnvironmentSetupError(
            f"--html {arguments.html} cannot be written: {error.strerror}"
        ) from error
    sys.stdout.write(f"{len(episodes)} episodes in {arguments.html}\n")
    return 0


def _view_file(arguments: argparse.Namespace) -> int:
    from agentrl.view.saved import lines_of

    given = [
        f"--{name}"
        for name in ("group", "lease", "last", "best", "worst", "failed", "task", "html", "json")
        if getattr(arguments, name)
    ]
    if given:
        raise ConfigError(
            f"{given[0]}: {arguments.run} is a file, of which all is shown; leave out"
        )
    with until_the_reader_leaves():
        for line in lines_of(arguments.run, tokens=arguments.tokens):
            sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    return 0


def _nothing(run: Path, choice: "Choice") -> str:
    """What there is none of, and where else there may be something to see."""
    if choice.failed:
        return _none_failed(run)
    if choice.group is not None or choice.lease is not None:
        return f"no such episode of task {choice.task}"
    return "no episode yet" if choice.all else "no episode that is done yet"


def _none_failed(run: Path) -> str:
    from agentrl.telemetry.dropped import one_line
    from agentrl.view.choice import Choice
    from agentrl.view.episodes import read_facts

    said = "no failed episode of training"
    rows = [episode.row for episode in read_facts(run, Choice(all=True))]
    if cut := [row.error for row in rows if row.outcome is None and row.error]:
        said += f"; {len(cut)} open ones were queued again ({one_line(cut[-1], _ERROR_CHARS)})"
    return f"{said}; {run / 'logs'} has those of evaluations"


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)
