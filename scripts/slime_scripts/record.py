"""Record what slime's launch scripts pass to its programs: facts, no text of a script.

    python scripts/slime_scripts/record.py CHECKOUT --commit ID > tests/fixtures/slime_scripts.json
    python scripts/slime_scripts/record.py CHECKOUT --commit ID --models \\
        > tests/fixtures/slime_models.json

The second records what each file of a model gives a script that sources it.
Such scripts kill processes by name, so none runs on the machine: each runs in namespaces of its own
(network, processes, mounts, host name), below a changed root with bash, some coreutils and stubs.
The stub `ray` writes the words behind `--` of `ray job submit`. Needs root and Linux.

A script that submits nothing, or loses arguments, is recorded so, and once more after its mend.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
COREUTILS = "awk basename cat cp cut dirname env grep head ln ls mkdir rm sed seq tail tee "
COREUTILS += "touch tr true wc"
STUBS = "apt-get curl git hf hostname nvidia-smi pip pkill ps rsync sleep ssh torchrun wget which"
#: What a launcher looks for before it submits.
DATA = tuple(f"root/datasets/geo3k_imgurl_processed/{part}.parquet" for part in ("train", "test"))
#: What a user of these scripts sets, as their comments ask; proxies, because some tests unset them.
ENVIRONMENT = {
    "BASE_DIR": "/root",
    "BASE_FOLDER": "/root",
    "HOME": "/root",
    "MASTER_ADDR": "127.0.0.1",
    "MLP_SOCKET_IFNAME": "eth0",
    "MLP_WORKER_0_HOST": "127.0.0.1",
    "PATH": "/bin",
    "SLIME_TEST_EXTERNAL_PD_HOST": "127.0.0.1",
    "WANDB_KEY": "WANDB_KEY",
    **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), ""),
}
_RAY = """#!/bin/bash
[ "$1 $2" = "job submit" ] || exit 0
while [ $# -gt 0 ] && [ "$1" != -- ]; do shift; done
number=$(ls /record | wc -l)
printf '%s\\0' "${@:2}" > /record/$((1000 + number))
"""
_STUB = "#!/bin/bash\nexit 0\n"
_PYTHON = '#!/bin/bash\n[ "$1" = -m ] && exec tail -f /dev/null\nexit 0\n'
_MKTEMP = '#!/bin/bash\ntouch "${1//X/0}"\necho "${1//X/0}"\n'
#: A script reads its version by `pipefail`.
_PIP = "#!/bin/bash\necho megatron-core 0.0\n"
_DATE = "#!/bin/bash\necho 20260101_000000\n"
_INSIDE = """
set -e
for place in /usr/lib /usr/lib64 "$PYTHON_PREFIX"; do
    [ -d "$place" ] || continue
    mkdir -p "$ROOT$place"
    mount --bind "$place" "$ROOT$place"
    mount -o remount,ro,bind "$ROOT$place"
done
for device in null urandom; do
    touch "$ROOT/dev/$device"
    mount --bind "/dev/$device" "$ROOT/dev/$device"
done
exec chroot "$ROOT" /bin/env -i "$@"
"""


def main() -> None:
    """Print the record of all scripts of a checkout, or of all files of models."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--commit", required=True, help="of slime, that the checkout is of")
    parser.add_argument("--models", action="store_true", help="files of models, not scripts")
    arguments = parser.parse_args()
    checkout, what = arguments.checkout, "models" if arguments.models else "scripts"
    if arguments.models:
        found = [model(checkout, path) for path in sorted(checkout.glob("scripts/models/*.sh"))]
    else:
        found = [row for path in launch_scripts(checkout) for row in record(arguments, path)]
    shown = {"upstream": "https://github.com/THUDM/slime", "commit": arguments.commit}
    shown |= {"environment": ENVIRONMENT}
    head = json.dumps(shown, indent=1).removesuffix("\n}")
    lines = ",\n".join("  " + json.dumps(row) for row in found)
    print(f'{head},\n "{what}": [\n{lines}\n ]\n}}')


def launch_scripts(checkout: Path) -> list[Path]:
    """Shell scripts that call a program of slime, and Python files that call `execute_train`."""
    found = []
    for path in sorted(checkout.rglob("*")):
        name = path.relative_to(checkout)
        of_users = name.parts[0] != "slime"
        calls = {".sh": r"train(_async)?\.py", ".py": "execute_train"}.get(path.suffix)
        if calls and of_users and re.search(calls, path.read_text()):
            found.append(name)
    return found


def record(arguments: argparse.Namespace, path: Path) -> Iterator[dict[str, Any]]:
    """One row for each call of a program that the script makes, or one that says it makes none."""
    calls, end = play(arguments.checkout, path, mended=False)
    if not calls:
        yield {"path": str(path), "program": None, "argv": [], "note": f"submits nothing: {end}"}
    for number, words in enumerate(calls, 1):
        row = _row(path, words) | ({"call": number} if len(calls) > 1 else {})
        lost = path.suffix == ".sh" and "command not found" in end
        yield row | ({"note": f"loses arguments: {end}"} if lost else {})
    if path.suffix == ".sh" and (not calls or "command not found" in end):
        for words in play(arguments.checkout, path, mended=True)[0]:
            yield _row(path, words) | {"mended": True}


def _row(path: Path, words: list[str]) -> dict[str, Any]:
    program = next(i for i, w in enumerate(words) if w.endswith(("train.py", "train_async.py")))
    name = Path(words[program]).stem
    return {"path": str(path), "program": name, "argv": words[program + 1 :]}


def model(checkout: Path, path: Path) -> dict[str, Any]:
    """The row of a file of a model."""
    with _root(checkout) as root:
        sourced = 'source "$0" && ray job submit -- "${MODEL_ARGS[@]}"'
        name = path.relative_to(checkout)
        end = _run(root, ["/bin/bash", "-c", sourced, f"/root/slime/{name}"])
        calls = _calls(root)
        if len(calls) != 1:
            raise SystemExit(f"{name} gives no arguments: {end}")
        return {"path": str(name), "argv": calls[0]}


@contextmanager
def _root(checkout: Path) -> Iterator[Path]:
    """A root with a copy of the checkout, until it is left."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        _furnish(root)
        shutil.copytree(checkout, root / "root/slime")
        yield root


def _calls(root: Path) -> list[list[str]]:
    return [call.read_text().split("\0")[:-1] for call in sorted((root / "record").iterdir())]


def play(checkout: Path, path: Path, *, mended: bool) -> tuple[list[list[str]], str]:
    """Run a script below a root of its own: what it submitted, and its last words on stderr."""
    with _root(checkout) as root:
        if mended:
            _mend(root / "root/slime", path)
        inside = f"/root/slime/{path}"
        command = ["/bin/bash", inside]
        if path.suffix == ".py":
            shutil.copy(HERE / "launcher.py", root / "launcher.py")
            command = [f"{sys.base_prefix}/bin/python3", "/launcher.py", inside]
        end = _run(root, command)
        return _calls(root), end


def _run(root: Path, command: list[str]) -> str:
    settings = [f"{name}={value}" for name, value in ENVIRONMENT.items()]
    unshare = ["unshare", "-n", "-p", "-m", "-u", "--fork", "--kill-child", "--mount-proc"]
    outer = {"ROOT": str(root), "PYTHON_PREFIX": sys.base_prefix}
    done = subprocess.run(
        [*unshare, "bash", "-c", _INSIDE, "inside", *settings, *command],
        env=outer | {"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=120,
    )
    said = [line for line in done.stderr.splitlines() if line and not line.startswith("+")]
    return said[-1].replace("/root/slime/", "") if said else ""


def _furnish(root: Path) -> None:
    for name in ("bin", "dev", "proc", "record", "root", "tmp", "usr/lib"):
        (root / name).mkdir(parents=True)
    for link in ("lib", "lib64"):
        (root / link).symlink_to(f"usr/{link}")
    for name in ("bash", *COREUTILS.split()):
        shutil.copy(shutil.which(name) or name, root / "bin" / name, follow_symlinks=True)
    stubs = dict.fromkeys(STUBS.split(), _STUB) | {"ray": _RAY, "date": _DATE, "pip": _PIP}
    stubs["mktemp"] = _MKTEMP
    for name, text in (stubs | dict.fromkeys(("python", "python3"), _PYTHON)).items():
        (root / "bin" / name).write_text(text)
        (root / "bin" / name).chmod(0o755)

    for data in DATA:
        (root / data).parent.mkdir(parents=True, exist_ok=True)
        (root / data).touch()


def _mend(tree: Path, path: Path) -> None:
    """What its author meant: a folder `scripts` below `scripts`, and a backslash before the lines
    that only name arrays."""
    (tree / "scripts/scripts").symlink_to(".")
    script = tree / path
    script.write_text(re.sub(r"([^\\\n])\n(\s+\$\{\w+\[@\]\})", r"\1 \\\n\2", script.read_text()))


if __name__ == "__main__":
    main()
