"""System calls that code in a sandbox is refused, as a seccomp filter of the kernel.

    wrong architecture -> the process is killed      too new a call -> ENOSYS
    refused, or refused with these arguments -> EPERM      anything else -> allowed

The code is one process with one thread and stays it: no fork, no thread, no exec. So nothing can
outlive it, and its limits of CPU and memory are those of everything that it does. It opens no
socket, sends no signal, and reaches no kernel service that namespaces do not divide: keyrings,
io_uring, bpf, the clock. Numbers are of Linux 6.18's tables (x86_64, and the generic one of
aarch64); a machine without a table is refused.
"""

import platform
import struct

from agentrl.errors import EnvironmentSetupError

__all__ = ["REFUSED", "REFUSED_ARGUMENTS", "seccomp_filter"]

#: name -> its number on x86_64 and on aarch64; None where there is no such call.
REFUSED: dict[str, tuple[int | None, int | None]] = {
    # processes, threads, programs
    "fork": (57, None), "vfork": (58, None), "clone": (56, 220), "clone3": (435, 435),
    "execve": (59, 221), "execveat": (322, 281),
    # signals, and other processes
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "pidfd_send_signal": (424, 424), "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438), "ptrace": (101, 117), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "process_madvise": (440, 440), "process_mrelease": (448, 448),
    "kcmp": (312, 272), "move_pages": (279, 239), "migrate_pages": (256, 238),
    # sockets, and what can make or stand for one
    "socket": (41, 198), "socketpair": (53, 199), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    # memory and queues that outlive a process, or that its limit of memory does not count
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "memfd_create": (319, 279),
    "memfd_secret": (447, 447), "semget": (64, 190), "semop": (65, 193), "semctl": (66, 191),
    "semtimedop": (220, 192), "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188),
    "msgctl": (71, 187), "mq_open": (240, 180), "mq_unlink": (241, 181),
    "mq_timedsend": (242, 182), "mq_timedreceive": (243, 183), "mq_notify": (244, 184),
    "mq_getsetattr": (245, 185),
    # keyrings
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    # mounts and namespaces
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "mount_setattr": (442, 442), "open_tree_attr": (467, 467), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265), "fanotify_init": (300, 262), "quotactl": (179, 60),
    "quotactl_fd": (443, 443), "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89),
    "unshare": (272, 97), "setns": (308, 268),
    # who one is
    "setuid": (105, 146), "setgid": (106, 144), "setreuid": (113, 145), "setregid": (114, 143),
    "setresuid": (117, 147), "setresgid": (119, 149), "setgroups": (116, 159),
    "setfsuid": (122, 151), "setfsgid": (123, 152), "capset": (126, 91), "personality": (135, 92),
    # limits and priorities
    "setrlimit": (160, 164), "setpriority": (141, 140), "ioprio_set": (251, 30),
    "sched_setparam": (142, 118), "sched_setscheduler": (144, 119), "sched_setattr": (314, 274),
    "sched_setaffinity": (203, 122),
    # the kernel and the host
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142),
    "syslog": (103, 116), "sethostname": (170, 161), "setdomainname": (171, 162),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171),
    "clock_adjtime": (305, 266), "vhangup": (153, 58), "iopl": (172, None), "ioperm": (173, None),
    "modify_ldt": (154, None), "uselib": (134, None),
}  # fmt: skip

#: name -> numbers, the argument that decides, and its refused values; None: any but 0.
REFUSED_ARGUMENTS: dict[str, tuple[tuple[int, int], int, tuple[int, ...] | None]] = {
    "prctl": ((157, 167), 0, (1,)),  # PR_SET_PDEATHSIG: to outlive the worker
    "fcntl": ((72, 25), 1, (8, 10, 15)),  # F_SETOWN, F_SETSIG, F_SETOWN_EX: signals to others
    "ioctl": ((16, 29), 1, (0x8901, 0x8902, 0x5412, 0x541C)),  # FIOSETOWN, SIOCSPGRP, TIOCSTI, ...
    "prlimit64": ((302, 261), 2, None),  # a new limit; asking for the present one is allowed
}

#: Later calls are unknown here, and answered as an older kernel would.
_NEWEST = 467
#: machine -> (AUDIT_ARCH_*, column of the tables above, first number of a foreign ABI)
_MACHINES = {"x86_64": (0xC000003E, 0, 0x40000000), "aarch64": (0xC00000B7, 1, None)}

_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOSYS = 1, 38
_LOAD, _EQUAL, _GREATER, _RETURN = 0x20, 0x15, 0x25, 0x06
#: Offsets in struct seccomp_data.
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16

Instruction = tuple[int, int, int, int]


def seccomp_filter(machine: str | None = None) -> bytes:
    """The filter as an array of `struct sock_filter`, for `machine` or else this one.

    Raises EnvironmentSetupError on a machine whose calls are not known here.
    """
    machine = machine or platform.machine()
    if machine not in _MACHINES:
        raise EnvironmentSetupError(
            f"no sandbox on {machine}: its system calls are known for {', '.join(_MACHINES)} only"
        )
    return b"".join(struct.pack("=HBBI", *step) for step in _program(*_MACHINES[machine]))


def _program(arch: int, column: int, foreign: int | None) -> list[Instruction]:
    program: list[Instruction] = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, arch),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if foreign is not None:
        program += [(_GREATER, 0, 1, foreign - 1), (_RETURN, 0, 0, _KILL)]
    program += [(_GREATER, 0, 1, _NEWEST), (_RETURN, 0, 0, _ERRNO | _ENOSYS)]
    for numbers in REFUSED.values():
        if (number := numbers[column]) is not None:
            program += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | _EPERM)]
    for pair, position, values in REFUSED_ARGUMENTS.values():
        rule = _deciding(position, values)
        program += [(_EQUAL, 0, len(rule), pair[column]), *rule]
    return [*program, (_RETURN, 0, 0, _ALLOW)]


def _deciding(position: int, values: tuple[int, ...] | None) -> list[Instruction]:
    """Answers a call by one argument. The kernel reads the low half of a command or request."""
    low = _ARGUMENTS + 8 * position
    rule: list[Instruction] = []
    if values is None:
        for half in (low, low + 4):
            rule += [(_LOAD, 0, 0, half), (_EQUAL, 1, 0, 0), (_RETURN, 0, 0, _ERRNO | _EPERM)]
    else:
        rule.append((_LOAD, 0, 0, low))
        for value in values:
            rule += [(_EQUAL, 0, 1, value), (_RETURN, 0, 0, _ERRNO | _EPERM)]
    return [*rule, (_RETURN, 0, 0, _ALLOW)]
