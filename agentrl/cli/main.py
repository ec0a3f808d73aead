"""`agentrl SUB-COMMAND`: train, and work on runs and hosts.

    agentrl train-async   what train_async.py of a clone does; `agentrl train` is its train.py
    agentrl audit RUN     check the ledger of a finished run; exit 1 when it contradicts itself
    agentrl view RUN      episodes of a run as conversations, or as one page with --html FILE
    agentrl eval MODEL    score a model on the evaluation sets of an Env; nothing is trained
    agentrl env WHAT      environments: list, check, play by hand, begin a new one
    agentrl check-hook NAME PATH    a function of yours for a flag, tried in seconds
    agentrl convert SOURCE TARGET    weights from Hugging Face's form into Megatron's, and back
    agentrl plan          what a run takes of GPUs, links and engines, before it is started
    agentrl simulate      what a GPU split, buffer size and bound give, under virtual time
    agentrl explain-flags SCRIPT    what each flag of a launch script of slime's is here
    agentrl doctor        what a host or a cluster has of what a run needs; exit 3 when not all

A sub-command imports what it needs when it is called. Its help says what its exit codes mean.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentrl.cli import check_hook, convert, env, explain, plan, simulate, view
from agentrl.cli.parser import Parser
from agentrl.config.command_line import Program
from agentrl.errors import AgentRLError, ConfigError
from agentrl.visible import visible

__all__ = ["made_parser", "main"]

_ABOUT = (
    """Train, and work on runs and hosts. In a clone `python train_async.py` is `train-async`."""
)
#: Sub-commands that take the flags of a program of the clone, and the program.
_TRAINING: dict[str, Program] = {"train-async": "train_async", "train": "train"}
_TRAIN = """\
Trains as `python {}.py` of a clone does, with the same flags; --help lists them.

exit codes: 0 complete, 2 command line, 3 host, 4 health check, 65 data or user code, 130 SIGINT,
143 SIGTERM, else 70
"""
_AUDIT = """\
Checks what a run left in RUN against what the buffer promises: every group has exactly one fate or
is open, nothing is trained twice, and the stored trajectories of open groups are whole. Reads only;
a run that is still going on cannot be audited.

exit codes:
  0    clean
  1    the ledger contradicts itself; each problem is a line that begins with PROBLEM
  2    the command line is wrong
  3    the run is still going on
  65   there is no ledger, or it is damaged: each damaged row is a line, with what is lost
"""
_EVAL = """\
Plays the evaluation sets once with MODEL on the real stack and ends. MODEL is a Hugging Face
directory; or a run directory: then its own configuration is used, and the model that it saved, else
its newest checkpoint; or one of its checkpoints. Scores are on the console and in the summary.json
of a new run directory.

    agentrl eval runs/ID
    agentrl eval MODEL --env NAME [any flag of train_async.py that an evaluation reads]

exit codes: those of train_async.py, 0 when every set was played
"""
_DOCTOR = """\
Looks for Python, packages, devices, ports, disk and memory, and measures an fsync where runs would
be written. With --ray-address every node of the cluster is asked what it has, and compared with
this host. Changes nothing. A line that begins with BAD says what to do.

exit codes:
  0    this host and the nodes have what a run needs
  2    the command line is wrong
  3    something is missing
"""


def main(argv: list[str] | None = None) -> int:
    """Run one sub-command; returns its exit code. From a shell (no `argv`), user code is checked in
    a process of its own."""
    if argv is None and sys.argv[1:3] == ["env", "check"]:
        from agentrl.cli.apart import run_apart

        return run_apart(sys.argv[1:], main.__module__)
    given = sys.argv[1:] if argv is None else argv
    if given and (program := _TRAINING.get(given[0])) is not None:
        from agentrl.cli.train import main as train

        return train(given[1:], program)
    arguments = made_parser().parse_args(given)
    command: Callable[[argparse.Namespace], int] = arguments.command
    try:
        return command(arguments)
    except AgentRLError as error:
        sys.stderr.write(f"agentrl: {visible(str(error))}\n")
        return error.exit_code


def made_parser() -> Parser:
    """What reads the command line; each sub-command leaves its function as `command`."""
    parser = Parser(
        prog="agentrl", description=_ABOUT, epilog="agentrl SUB-COMMAND --help says more."
    )
    commands = parser.add_subparsers(metavar="SUB-COMMAND", required=True)
    for name, brief in (("train-async", "Train asynchronously"), ("train", "Train synchronously")):
        _add(commands, name, brief, _TRAIN.format(_TRAINING[name]))
    audit = _add(commands, "audit", "Check the ledger of a finished run", _AUDIT)
    audit.add_argument("run", metavar="RUN", type=Path, help="Run directory, such as runs/ID")
    audit.set_defaults(command=_audit)
    shown = _add(commands, "view", "Show episodes of a run as conversations", view.ABOUT)
    view.add_arguments(shown)
    shown.set_defaults(command=view.view)
    evaluation = _add(commands, "eval", "Score a model; nothing is trained", _EVAL)
    evaluation.add_argument("model", metavar="MODEL", type=Path, help="Model or run directory")
    evaluation.add_argument(
        "flags", metavar="FLAG", nargs=argparse.REMAINDER, help="Flags of train_async.py"
    )
    evaluation.set_defaults(command=_eval)
    env.add_commands(_add(commands, "env", "List, check, play or begin an environment", env.ABOUT))
    hook = _add(commands, "check-hook", "Try a function of yours for a flag", check_hook.ABOUT)
    check_hook.add_arguments(hook)
    hook.set_defaults(command=check_hook.check_hook)
    conversion = _add(commands, "convert", "Write weights in another form", convert.ABOUT)
    convert.add_arguments(conversion)
    conversion.set_defaults(command=convert.convert)
    planned = _add(commands, "plan", "Say what a run takes of GPUs, links and engines", plan.ABOUT)
    plan.add_arguments(planned)
    planned.set_defaults(command=plan.plan)
    simulation = _add(commands, "simulate", "Try schedules under virtual time", simulate.ABOUT)
    simulate.add_arguments(simulation)
    simulation.set_defaults(command=simulate.simulate)
    explained = _add(commands, "explain-flags", "Say what slime's flags are here", explain.ABOUT)
    explain.add_arguments(explained)
    explained.set_defaults(command=explain.explain_flags)
    doctor = _add(commands, "doctor", "Say what this host has of what a run needs", _DOCTOR)
    doctor.add_argument(
        "--run-dir",
        metavar="DIR",
        type=Path,
        default=Path("runs"),
        help="Folder that would hold the runs [default: runs]",
    )
    doctor.add_argument(
        "--ray-address",
        metavar="HOST:PORT",
        help="Ray cluster whose nodes are asked too [default: none]",
    )
    doctor.add_argument(
        "--save",
        metavar="DIR",
        type=Path,
        help="Folder that all nodes of --ray-address should share [default: none]",
    )
    doctor.set_defaults(command=_doctor)
    return parser


def _add(commands: Any, name: str, brief: str, about: str) -> Parser:
    about, _, codes = about.partition("exit codes:")
    parser: Parser = commands.add_parser(
        name,
        help=brief,
        description=about,
        epilog=f"exit codes:{codes}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return parser


def _audit(arguments: argparse.Namespace) -> int:
    from agentrl.buffer.audit import audit

    report = audit(arguments.run)
    fates = ", ".join(f"{fate} {count}" for fate, count in sorted(report.fates.items())) or "none"
    sys.stdout.write(
        f"minted {report.minted} = open {report.open} + final fates ({fates})\n"
        f"{report.leases} leases; of open groups {report.payloads_checked} payloads, all read\n"
    )
    for problem in report.problems:
        sys.stdout.write(f"PROBLEM: {problem}\n")
    sys.stdout.write("clean\n" if report.clean else f"{len(report.problems)} problems\n")
    return 0 if report.clean else 1


def _eval(arguments: argparse.Namespace) -> int:
    from agentrl.cli.evaluate import evaluate

    return evaluate(arguments.model, arguments.flags)


def _doctor(arguments: argparse.Namespace) -> int:
    from agentrl.cli.doctor import examine

    found = [("this host", examine(arguments.run_dir))]
    if arguments.ray_address is not None:
        from agentrl.cli.doctor_nodes import examine_nodes

        found += examine_nodes(arguments.ray_address, arguments.save)
    elif arguments.save is not None:
        raise ConfigError("--save is asked of the nodes of a cluster: add --ray-address")
    for place, findings in found:
        if len(found) > 1:
            sys.stdout.write(f"{place}:\n")
        for finding in findings:
            mark = "ok " if finding.good else "BAD"
            sys.stdout.write(f"{mark} {finding.name:<10} {finding.detail}\n")
    return 0 if all(finding.good for _, findings in found for finding in findings) else 3
