"""Write the locks `requirements/{runtime,dev,gpu}.txt`, for all supported Pythons at once.

`runtime` and `dev`: the closure of the packages named in the `.in` files is followed through the
metadata of what this interpreter has, so the lock is what the tests ran with. Names marked
`# no-deps` are locked without their requirements. Nothing of torch may enter.

`gpu`: what uv resolves for the extra `gpu` on Linux x86_64, torch and CUDA too. A package that
stands in `runtime.txt` keeps the version it has there, if SGLang allows that.

`examples/NAME/requirements.txt`, where the folder has a `requirements.in`, and `trackers`: what uv
resolves for that beside the direct requirements of `runtime`, as far as it is not in `runtime.txt`
already. It is installed over that.

Hashes are those of the wheels that fit, for each Python and architecture.

    python scripts/lock.py
"""

import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = Path(__file__).resolve().parent.parent
ROOT = PROJECT / "requirements"
PYTHONS = ("3.11", "3.12")
ARCHITECTURES = ("x86_64", "aarch64")
GPU_ARCHITECTURES = ("x86_64",)
#: SGLang's wheels want this glibc.
GLIBC = "2_34"
OUTSIDE = {"torch", "agentrl", "pip"}
#: Not resolved over `runtime`: the host has the one, and the other, which asks swanlab's users for
#: a password at a terminal, is no wheel.
NEVER = ("torch", "pwinput")
FORBIDDEN = ("torch", "nvidia-c", "triton", "cuda", "flashinfer")


def direct(name: str) -> dict[str, bool]:
    """Names in `requirements/NAME.in` -> whether their requirements are followed."""
    found: dict[str, bool] = {}
    for line in (ROOT / f"{name}.in").read_text().splitlines():
        package, _, comment = line.partition("#")
        if package.strip():
            found[canonicalize_name(package.strip())] = "no-deps" not in comment
    return found


def requirements_of(package: str, python: str) -> Iterator[str]:
    """Names that the installed `package` requires on this platform, extras left out."""
    where = {"extra": "", "python_version": python, "python_full_version": f"{python}.0"}
    for text in metadata.requires(package) or []:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate(where):
            yield canonicalize_name(requirement.name)


def closure(roots: dict[str, bool], python: str) -> set[str]:
    """`roots` and all that they require."""
    seen: set[str] = set()
    pending = list(roots)
    while pending:
        package = pending.pop()
        if package in seen or package in OUTSIDE:
            continue
        seen.add(package)
        if roots.get(package, True):
            pending.extend(requirements_of(package, python))
    return seen


def closure_of_all(roots: dict[str, bool]) -> set[str]:
    """The closure, which must be the same for each Python: one lock serves them all."""
    first, *others = [closure(roots, python) for python in PYTHONS]
    if different := set().union(*(first ^ other for other in others)):
        sys.exit(f"{', '.join(sorted(different))}: required by some of {', '.join(PYTHONS)} only")
    return first


def resolved(*arguments: str | Path) -> dict[str, str]:
    """Package -> version, as uv resolves for the oldest Python."""
    with tempfile.TemporaryDirectory() as folder:
        # uv keeps the versions that stand in its output where it can.
        output = Path(folder, "lock.txt")
        output.write_text((ROOT / "runtime.txt").read_text())
        compiled(PYTHONS[0], "x86_64", "--no-annotate", "-o", output, *arguments)
        return pinned(output)


def pinned(lock: Path) -> dict[str, str]:
    """Package -> version, as a lock has them."""
    found = re.findall(r"^([\w.-]+)==(\S+)", lock.read_text(), re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}


def resolved_over(wanted: Path) -> dict[str, str]:
    """What that file wants beside `runtime.txt`, and what it wants in another version."""
    runtime = pinned(ROOT / "runtime.txt")
    with tempfile.TemporaryDirectory() as folder:
        roots, outside = Path(folder, "roots.in"), Path(folder, "outside.txt")
        followed = [name for name, is_followed in direct("runtime").items() if is_followed]
        roots.write_text("\n".join([*followed, wanted.read_text()]))
        outside.write_text("".join(f"{name} ; sys_platform == 'never'\n" for name in NEVER))
        found = resolved("--overrides", outside, roots)
    return {name: version for name, version in found.items() if runtime.get(name) != version}


def compiled(python: str, architecture: str, *arguments: str | Path) -> None:
    """Let uv resolve for Linux with `python` on `architecture`."""
    platform = f"--python-platform={architecture}-manylinux_{GLIBC}"
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-config"]
    command += ["--no-header", f"--python-version={python}", platform, "--only-binary=:all:"]
    subprocess.run([*command, *arguments], check=True, cwd=PROJECT)


def wheels(pins: Iterable[str], python: str, architecture: str) -> Iterator[tuple[str, str]]:
    """Package and sha256 of each wheel that fits."""
    with tempfile.TemporaryDirectory() as folder:
        listing, output = Path(folder, "pins.txt"), Path(folder, "pylock.toml")
        listing.write_text("\n".join(pins))
        options = ("--no-deps", "--format=pylock.toml", "-o", output)
        compiled(python, architecture, *options, listing)
        packages = tomllib.loads(output.read_text())["packages"]
    for package in packages:
        for wheel in package["wheels"]:
            yield package["name"], wheel["hashes"]["sha256"]


def hashes(pins: dict[str, str], architectures: Iterable[str]) -> dict[str, set[str]]:
    """Package -> hashes of its files, over all Pythons and architectures."""
    found: dict[str, set[str]] = {package: set() for package in pins}
    for architecture in architectures:
        for python in PYTHONS:
            named = [f"{package}=={version}" for package, version in pins.items()]
            for package, digest in wheels(named, python, architecture):
                found[package].add(digest)
    return found


def write(lock: Path, source: str, pins: dict[str, str], digests: dict[str, set[str]]) -> None:
    """One lock file."""
    lines = [f"# Written by scripts/lock.py from {source}; do not edit."]
    for package in sorted(pins):
        options = "".join(f" \\\n    --hash=sha256:{digest}" for digest in sorted(digests[package]))
        lines.append(f"{package}=={pins[package]}{options}")
    lock.write_text("\n".join(lines) + "\n")
    print(f"{lock.relative_to(PROJECT)}: {len(pins)} packages")


def write_over_runtime() -> None:
    for wanted in [*sorted(PROJECT.glob("examples/*/requirements.in")), ROOT / "trackers.in"]:
        pins = resolved_over(wanted)
        source = str(wanted.relative_to(PROJECT))
        write(wanted.with_suffix(".txt"), source, pins, hashes(pins, ARCHITECTURES))


def main() -> None:
    runtime = closure_of_all(direct("runtime"))
    dev = closure_of_all(direct("dev")) - runtime
    if wrong := [p for p in runtime | dev if p.startswith(FORBIDDEN)]:
        sys.exit(f"the lock would hold {', '.join(wrong)}: mark what requires it with '# no-deps'")
    pins = {package: metadata.version(package) for package in runtime | dev}
    digests = hashes(pins, ARCHITECTURES)
    for name, packages in (("runtime", runtime), ("dev", dev)):
        source = f"requirements/{name}.in"
        write(ROOT / f"{name}.txt", source, {p: pins[p] for p in packages}, digests)
    on_gpus = resolved("--extra=gpu", "pyproject.toml")
    digests = hashes(on_gpus, GPU_ARCHITECTURES)
    write(ROOT / "gpu.txt", "pyproject.toml, extra gpu", on_gpus, digests)
    write_over_runtime()


if __name__ == "__main__":
    main()
