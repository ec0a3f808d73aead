"""`agentrl SUB-COMMAND`: work on runs and hosts. Training starts with train_async.py.

    agentrl audit RUN     check the ledger of a finished run; exit 1 when it contradicts itself
    agentrl doctor        what this host has of what a run needs; exit 3 when something is missing

A sub-command imports what it needs when it is called.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from agentrl.errors import AgentRLError

__all__ = ["main"]


def main(argv: list[str] | None = None) -> int:
    """Run one sub-command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="agentrl", description="Work on runs and hosts.")
    commands = parser.add_subparsers(metavar="SUB-COMMAND", required=True)
    audit = commands.add_parser("audit", help="check the ledger of a finished run")
    audit.add_argument("run", type=Path, help="run directory, such as runs/ID")
    audit.set_defaults(command=_audit)
    doctor = commands.add_parser("doctor", help="what this host has of what a run needs")
    doctor.add_argument("--run-dir", type=Path, default=Path("runs"), help="where runs would go")
    doctor.set_defaults(command=_doctor)
    arguments = parser.parse_args(argv)
    command: Callable[[argparse.Namespace], int] = arguments.command
    try:
        return command(arguments)
    except AgentRLError as error:
        sys.stderr.write(f"agentrl: {error}\n")
        return error.exit_code


def _audit(arguments: argparse.Namespace) -> int:
    from agentrl.buffer.audit import audit

    report = audit(arguments.run)
    fates = ", ".join(f"{fate} {count}" for fate, count in sorted(report.fates.items())) or "none"
    sys.stdout.write(
        f"minted {report.minted} = open {report.open} + final fates ({fates})\n"
        f"{report.leases} leases, {report.payloads_checked} payloads checked\n"
    )
    for problem in report.problems:
        sys.stdout.write(f"PROBLEM: {problem}\n")
    sys.stdout.write("clean\n" if report.clean else f"{len(report.problems)} problems\n")
    return 0 if report.clean else 1


def _doctor(arguments: argparse.Namespace) -> int:
    from agentrl.cli.doctor import examine

    findings = examine(arguments.run_dir)
    for finding in findings:
        mark = "ok " if finding.good else "BAD"
        sys.stdout.write(f"{mark} {finding.name:<10} {finding.detail}\n")
    return 0 if all(finding.good for finding in findings) else 3
