"""The filter of system calls, played in Python for every machine that has one."""

import platform
import struct

import pytest

from agentrl.errors import EnvironmentSetupError
from agentrl.tools.sandbox.syscalls import REFUSED, REFUSED_ARGUMENTS, seccomp_filter

ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
COLUMN = {"x86_64": 0, "aarch64": 1}
ALLOW, KILL, EPERM, ENOSYS = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026
MOST_STEPS = 4096  # BPF_MAXINSNS

on_each_machine = pytest.mark.parametrize("machine", list(ARCHES))


def answer(machine: str, number: int, *args: int, arch: int | None = None) -> int:
    """What the kernel does with a call: the verdict that the filter returns."""
    padded = (*args, 0, 0, 0, 0, 0, 0)[:6]
    data = struct.pack("=iIQ6Q", number, ARCHES[machine] if arch is None else arch, 0, *padded)
    program = list(struct.iter_unpack("=HBBI", seccomp_filter(machine)))
    at = value = 0
    while True:
        code, jump_true, jump_false, k = program[at]
        at += 1
        match code:
            case 0x20:  # ld [k]
                assert k % 4 == 0
                (value,) = struct.unpack_from("=I", data, k)
            case 0x15:  # jeq
                at += jump_true if value == k else jump_false
            case 0x25:  # jgt
                at += jump_true if value > k else jump_false
            case 0x06:  # ret
                return int(k)
            case _:
                raise AssertionError(f"instruction {code:#x}")


@on_each_machine
def test_every_listed_call_is_refused(machine: str) -> None:
    for name, numbers in REFUSED.items():
        if (number := numbers[COLUMN[machine]]) is not None:
            assert answer(machine, number) == EPERM, name


@on_each_machine
def test_what_python_needs_is_allowed(machine: str) -> None:
    refused = {numbers[COLUMN[machine]] for numbers in REFUSED.values()}
    # read, write, close, mmap, munmap, brk, openat, futex, getrandom, exit_group
    needed = {"x86_64": (0, 1, 3, 9, 11, 12, 257, 202, 318, 231)}
    needed["aarch64"] = (63, 64, 57, 222, 215, 214, 56, 98, 278, 94)
    assert not refused.intersection(needed[machine])
    for number in needed[machine]:
        assert answer(machine, number) == ALLOW


@on_each_machine
def test_an_argument_decides_where_it_should(machine: str) -> None:
    numbers = {name: rule[0][COLUMN[machine]] for name, rule in REFUSED_ARGUMENTS.items()}
    for name, (_, position, values) in REFUSED_ARGUMENTS.items():
        for value in (1, 1 << 40) if values is None else values:
            args = [0] * position + [value]
            assert answer(machine, numbers[name], *args) == EPERM, name
    assert answer(machine, numbers["prlimit64"], 0, 7, 0, 1) == ALLOW
    assert answer(machine, numbers["prctl"], 15) == ALLOW
    assert answer(machine, numbers["fcntl"], 8, 1) == ALLOW
    assert answer(machine, numbers["ioctl"], 0, 0x5401) == ALLOW
    # the kernel looks at 32 bits of a command: what lies above them must not hide it
    assert answer(machine, numbers["fcntl"], 0, 8 | 1 << 32) == EPERM


@on_each_machine
def test_foreign_and_future_calls_are_not_allowed(machine: str) -> None:
    assert answer(machine, 0, arch=0x40000003) == KILL  # i386
    assert answer(machine, 468) == ENOSYS
    assert answer(machine, 0x7FFFFFFF) in (KILL, ENOSYS)
    assert answer(machine, -1) in (KILL, ENOSYS)


def test_calls_of_the_x32_abi_kill() -> None:
    assert answer("x86_64", 0x40000000 + 41) == KILL


@on_each_machine
def test_the_filter_fits_the_kernel(machine: str) -> None:
    assert len(seccomp_filter(machine)) // 8 <= MOST_STEPS


def test_a_machine_without_a_table_has_no_sandbox() -> None:
    with pytest.raises(EnvironmentSetupError, match=r"no sandbox on riscv64.*x86_64, aarch64"):
        seccomp_filter("riscv64")
    assert seccomp_filter() == seccomp_filter(platform.machine())
