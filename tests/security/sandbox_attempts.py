"""Attempts to get out of a sandbox, and what each sandbox makes of them.

An attempt is a program. It prints THROUGH when it has got through; `host` holds what it aims at on
the host. Each is harmless where it succeeds, so that it can also be run without any sandbox, to see
that it would succeed there.
"""

from typing import Literal, NamedTuple

from agentrl.tools.sandbox import SandboxLimits

THROUGH = "got through"
MIB = 1024**2
LIMITS = SandboxLimits(
    cpu_s=20, wall_s=60, memory_bytes=192 * MIB, disk_bytes=2 * MIB, max_files=64,
    max_open_files=32,
)  # fmt: skip
#: Of attempts that end at a limit of time.
SHORT = SandboxLimits(cpu_s=1, wall_s=3)

#: `namespaces`: the plain sandbox stops it where the kernel allows it namespaces.
Plain = Literal["stopped", "not stopped", "namespaces"]


class Attempt(NamedTuple):
    """`code` is tried. Bubblewrap stops every one. `needs`: what the host must have for the attempt
    to succeed there (`root`, `user`: the worker's user, too; `attach`: no Yama that keeps processes
    of one user apart). `times`: runs, of which the last counts."""

    name: str
    plain: Plain
    code: str
    needs: Literal["", "root", "user", "attach", "attach as user", "luck"] = ""
    limits: SandboxLimits = LIMITS
    times: int = 1


FILES = [
    Attempt("read a private file of the worker's user", "not stopped",
            "if open(host['secret']).read() == host['word']: through()"),
    Attempt("read the host's password hashes", "not stopped",
            "if 'root' in open('/etc/shadow').read(): through()", "root"),
    Attempt("search a home folder for keys", "not stopped",
            "for folder, _, files in os.walk(host['home']):\n"
            "    for name in files:\n"
            "        if host['word'] in open(f'{folder}/{name}').read(): through()"),
    Attempt("follow a symbolic link out of the work folder", "not stopped",
            "os.symlink(host['secret'], 'link')\nif open('link').read(): through()"),
    Attempt("climb out by `..`", "not stopped",
            "if open('../' * 30 + host['secret']).read(): through()"),
    Attempt("link a host's file into the work folder", "namespaces",
            "os.link(host['secret'], 'link')\nthrough()"),
    Attempt("hold a lock on a file of the host", "not stopped",
            "import fcntl\nwith open(host['secret']) as file:\n"
            "    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)\nthrough()"),
    Attempt("change a file of the host", "not stopped",
            "with open(host['writable'], 'a') as file: file.write('x')\nthrough()"),
    Attempt("make a file outside the work folder", "not stopped",
            "open(host['home'] + f'/made-{os.getpid()}', 'w').close()\nthrough()"),
    Attempt("leave a file for the next run in the work folder", "stopped",
            "if os.path.exists('note'): through()\nopen('note', 'w').close()", times=2),
    Attempt("leave a file for the next run in the folder for temporary files", "not stopped",
            "path = host['shared'] + '/note'\nif os.path.exists(path): through()\n"
            "open(path, 'w').close()", times=2),
    Attempt("leave memory for the next run in `/dev/shm`", "not stopped",
            "path = '/dev/shm/' + host['word'] + str(host['column'])\n"
            "if os.path.exists(path):\n    through()\n    os.unlink(path)\n"
            "else: open(path, 'w').close()", times=2),
    Attempt("change the root folder", "stopped", "os.chroot('.')\nthrough()", "root"),
    Attempt("mount a file system", "stopped",
            "libc.unshare(0x20000)\n"
            "if libc.mount(b'tmpfs', b'.', b'tmpfs', 0, None) == 0: through()", "root"),
    Attempt("make a device of the host's disk", "stopped",
            "os.mknod('disk', 0o60600, os.stat('/').st_dev)\nthrough()", "root"),
    Attempt("list the devices of the host", "not stopped",
            "if len(os.listdir('/dev')) > 3: through()"),
    Attempt("open a file that the worker has open", "stopped",
            "for fd in range(3, host['descriptor'] + 256):\n"
            "    try:\n"
            "        if os.pread(fd, 99, 0).decode() == host['word']: through()\n"
            "    except OSError: pass"),
]  # fmt: skip

PROCESSES = [
    Attempt("fork without end", "stopped",
            "for _ in range(8):\n    if os.fork() == 0: time.sleep(0.5); os._exit(0)\nthrough()"),
    Attempt("fork by the bare system call", "stopped",
            "number = {'x86_64': 56, 'aarch64': 220}[os.uname().machine]\n"
            "pid = libc.syscall(number, 17, 0, 0, 0, 0)\n"
            "if pid == 0: os._exit(0)\nif pid > 0: through()"),
    Attempt("start threads without end", "stopped",
            "import threading\nfor _ in range(8): threading.Thread(target=time.sleep, args=(0.1,))"
            ".start()\nthrough()"),
    Attempt("leave a daemon behind", "stopped",
            "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
            "        for fd in range(3): os.close(fd)\n        time.sleep(1)\n    os._exit(0)\n"
            "through()"),
    Attempt("run another program", "stopped",
            "import subprocess\nif subprocess.run(['true']).returncode == 0: through()"),
    Attempt("become another program", "stopped",
            f"os.write(1, b'')\nos.execv('/bin/sh', ['sh', '-c', 'echo {THROUGH}'])"),
    Attempt("become another user", "stopped", "os.setuid(12345)\nthrough()", "root"),
    Attempt("loop without end", "stopped",
            "end = time.monotonic() + 6\nwhile time.monotonic() < end: pass\nthrough()",
            limits=SHORT),
    Attempt("loop on, deaf to the signal that ends it", "stopped",
            "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\n"
            "end = time.monotonic() + 6\nwhile time.monotonic() < end: pass\nthrough()",
            limits=SHORT),
    Attempt("sleep without end", "stopped", "time.sleep(6)\nthrough()", limits=SHORT),
    Attempt("close its output and run on", "stopped",
            "kept = os.dup(1)\nos.close(1); os.close(2)\ntime.sleep(6)\nos.dup2(kept, 1)\n"
            "through()", limits=SHORT),
    Attempt("outlive the worker", "stopped", "if libc.prctl(1, 0, 0, 0, 0) == 0: through()"),
    Attempt("send the worker a signal", "stopped", "os.kill(host['worker'], 0)\nthrough()"),
    Attempt("send the worker a signal by a descriptor of it", "stopped",
            "import signal\nsignal.pidfd_send_signal(os.pidfd_open(host['worker']), 0)\nthrough()"),
    Attempt("have the kernel send the worker a signal", "stopped",
            "import fcntl\nfcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, host['worker'])\nthrough()"),
    Attempt("have the kernel end the worker first when memory runs out", "namespaces",
            "path = f'/proc/{host[\"worker\"]}/oom_score_adj'\n"
            "before = open(path).read()\n"
            "with open(path, 'w') as file: file.write(before)\nthrough()"),
    Attempt("see other processes", "namespaces",
            "if open(f'/proc/{host[\"worker\"]}/cmdline').read(): through()"),
    Attempt("read the worker's environment", "namespaces",
            "if 'PATH=' in open(f'/proc/{host[\"worker\"]}/environ').read(): through()",
            "user"),
    Attempt("read another run's environment", "namespaces",
            "if open(f'/proc/{host[\"other\"]}/environ').read(): through()"),
    Attempt("trace another run", "stopped",
            "if libc.ptrace(16, host['other'], 0, 0) == 0: through()", "luck"),
    Attempt("write the worker's memory", "namespaces",
            "with open(f'/proc/{host[\"worker\"]}/mem', 'r+b', 0) as memory:\n"
            "    memory.seek(host['address'])\n    word = memory.read(len(host['word']))\n"
            "    memory.seek(host['address'])\n"
            "    if memory.write(word) and word.decode() == host['word']: through()",
            "attach as user"),
    Attempt("read another run's memory", "namespaces",
            "with open(f'/proc/{host[\"other\"]}/maps') as maps: start = maps.read(12)\n"
            "with open(f'/proc/{host[\"other\"]}/mem', 'rb', 0) as memory:\n"
            "    memory.seek(int(start.partition('-')[0], 16))\n"
            "    if memory.read(4) == b'\\x7fELF': through()", "attach"),
    Attempt("read the worker's memory by the call for it", "stopped",
            "space = ctypes.create_string_buffer(8)\n"
            "vector = (ctypes.c_size_t * 2)(ctypes.addressof(space), 8)\n"
            "libc.process_vm_readv(host['worker'], vector, 1, vector, 1, 0)\n"
            "if ctypes.get_errno() != 1: through()", "luck"),
]  # fmt: skip

NETWORK = [
    Attempt("connect to a port of the host", "stopped",
            "socket.create_connection(('127.0.0.1', host['port']))\nthrough()"),
    Attempt("send a datagram", "stopped",
            "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 9))\n"
            "through()"),
    Attempt("connect to a socket in the file system", "stopped",
            "socket.socket(socket.AF_UNIX).connect(host['socket'])\nthrough()"),
    Attempt("connect to a socket without a file", "stopped",
            "socket.socket(socket.AF_UNIX).connect('\\0' + host['word'])\nthrough()"),
    Attempt("ask the kernel for the host's interfaces", "stopped",
            "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)\nthrough()"),
    Attempt("listen to the host's packets", "stopped",
            "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)\nthrough()", "root"),
    Attempt("listen on a port", "stopped", "socket.create_server(('127.0.0.1', 0))\nthrough()"),
    Attempt("make sockets by io_uring", "stopped",
            "if libc.syscall(425, 4, ctypes.create_string_buffer(120)) >= 0: through()", "luck"),
    Attempt("list the host's connections", "namespaces",
            "if f':{host[\"port\"]:04X} ' in open('/proc/net/tcp').read(): through()"),
]  # fmt: skip

KERNEL = [
    Attempt("reach the keyrings of the kernel", "stopped",
            "number = {'x86_64': 250, 'aarch64': 219}[os.uname().machine]\n"
            "if libc.syscall(number, 0, -3, 1) > 0: through()"),
    Attempt("make new namespaces", "stopped", "if libc.unshare(0x10000000) == 0: through()"),
    Attempt("leave shared memory for the next run", "stopped",
            "made = libc.shmget(0, 4096, 0o1600)\nlibc.shmctl(made, 0, None)\n"
            "if made >= 0: through()"),
    Attempt("use a semaphore of the worker", "stopped",
            "if libc.semctl(host['semaphore'], 0, 12, 0) >= 0: through()"),  # GETVAL
    Attempt("raise its own limits", "stopped",
            "import resource\nmost = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
            "resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))\nthrough()"),
    Attempt("choose its processors", "stopped",
            "os.sched_setaffinity(0, os.sched_getaffinity(0))\nthrough()"),
    Attempt("change its priority", "stopped", "os.nice(1)\nthrough()"),
    Attempt("leave its memory on the disk when it crashes", "stopped",
            "import resource\nif resource.getrlimit(resource.RLIMIT_CORE)[1] != 0: through()",
            "luck"),
    Attempt("learn the host's name", "not stopped",
            "if os.uname().nodename == host['name']: through()"),
    Attempt("read secrets from the environment", "stopped",
            "if host['word'] in os.environ.values(): through()"),
]  # fmt: skip

BOMBS = [
    Attempt("take all memory", "stopped", "kept = bytearray(256 * 1024**2)\nthrough()"),
    Attempt("take memory that belongs to no process", "stopped",
            "fds = [os.memfd_create('x') for _ in range(4)]\nthrough()"),
    Attempt("unpack a small archive into much memory", "stopped",
            "import zlib\npacker = zlib.compressobj()\n"
            "parts = [packer.compress(bytes(1024**2)) for _ in range(256)]\n"
            "zlib.decompress(b''.join(parts) + packer.flush())\nthrough()"),
    Attempt("fill the disk with one file", "stopped",
            "with open('big', 'wb') as file: file.write(bytes(4 * 1024**2))\nthrough()"),
    Attempt("fill the disk with many files", "namespaces",
            "for i in range(3):\n"
            "    with open(f'big{i}', 'wb') as file: file.write(bytes(1024**2))\n"
            "through()"),
    Attempt("fill the disk with empty files", "namespaces",
            "for i in range(200): open(f'empty{i}', 'w').close()\nthrough()"),
    Attempt("write output without end", "stopped",
            "for _ in range(1000): print('x' * 1000)\nthrough()"),
]  # fmt: skip

ATTEMPTS = [*FILES, *PROCESSES, *NETWORK, *KERNEL, *BOMBS]
