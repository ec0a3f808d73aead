"""What a run of code may use, and what is left of it."""

import msgspec

__all__ = ["SandboxLimits", "SandboxResult"]

_MIB = 1024**2


class SandboxLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one run may use. A run is one process with one thread, so these are of all of it.

    `wall_s` counts from the first line of the code. `disk_bytes` and `max_files` are of the work
    folder; a plain sandbox without namespaces can bound single files only, not their sum.
    `max_output_bytes` is of stdout and of stderr, each.
    """

    cpu_s: int = 5
    wall_s: float = 30.0
    memory_bytes: int = 512 * _MIB
    disk_bytes: int = 16 * _MIB
    max_files: int = 1024
    max_open_files: int = 64
    max_output_bytes: int = 16_384


class SandboxResult(msgspec.Struct, frozen=True):
    """How a run ended and what it wrote, cut at `max_output_bytes` each.

    `exit_code` is that of a shell, 128 + n after signal n, and None when the run was ended from
    outside: `timed_out` after `wall_s` (and, with an exit code, after `cpu_s`), `is_cut` because it
    wrote too much.
    """

    stdout: str
    stderr: str
    exit_code: int | None
    timed_out: bool = False
    is_cut: bool = False
