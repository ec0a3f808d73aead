"""Write `requirements/{runtime,dev}.txt` from the `.in` files and what this interpreter has.

The closure of the named packages is followed through the metadata of the installed distributions,
so the lock is what the tests ran with. Hashes of each version's files for Linux on x86_64 and
aarch64 come from `pip install --dry-run --report`. Names marked `# no-deps` are locked without
their requirements. Nothing of torch may enter.

    python scripts/lock.py
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent / "requirements"
ARCHITECTURES = ("x86_64", "aarch64")
GLIBC = (17, 27, 28, 31, 34, 35)
OUTSIDE = {"torch", "agentrl", "pip"}
FORBIDDEN = ("torch", "nvidia-c", "triton", "cuda", "flashinfer")


def direct(name: str) -> dict[str, bool]:
    """Names in `requirements/NAME.in` -> whether their requirements are followed."""
    found: dict[str, bool] = {}
    for line in (ROOT / f"{name}.in").read_text().splitlines():
        package, _, comment = line.partition("#")
        if package.strip():
            found[canonicalize_name(package.strip())] = "no-deps" not in comment
    return found


def requirements_of(package: str) -> Iterator[str]:
    """Names that the installed `package` requires on this platform, extras left out."""
    for text in metadata.requires(package) or []:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield canonicalize_name(requirement.name)


def closure(roots: dict[str, bool]) -> set[str]:
    """`roots` and all that they require."""
    seen: set[str] = set()
    pending = list(roots)
    while pending:
        package = pending.pop()
        if package in seen or package in OUTSIDE:
            continue
        seen.add(package)
        if roots.get(package, True):
            pending.extend(requirements_of(package))
    return seen


def report(pins: Iterable[str], architecture: str) -> dict[str, str]:
    """sha256 of the file pip would install for each pin."""
    with tempfile.TemporaryDirectory() as folder:
        listing, answer = Path(folder, "pins.txt"), Path(folder, "report.json")
        listing.write_text("\n".join(pins))
        platforms = [f"--platform=manylinux_2_{minor}_{architecture}" for minor in GLIBC]
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--no-deps"]
        command += ["--ignore-installed", "--only-binary=:all:", "--python-version=3.11"]
        command += [f"--platform=manylinux2014_{architecture}", f"--target={folder}/target"]
        command += [*platforms, "--report", str(answer), "-r", str(listing)]
        subprocess.run(command, check=True)
        found = json.loads(answer.read_text())["install"]
    return {
        canonicalize_name(item["metadata"]["name"]): item["download_info"]["archive_info"][
            "hashes"
        ]["sha256"]
        for item in found
    }


def hashes(pins: dict[str, str]) -> dict[str, list[str]]:
    """Package -> hashes of its files, over all architectures."""
    found: dict[str, set[str]] = {package: set() for package in pins}
    for architecture in ARCHITECTURES:
        for package, digest in report(pins.values(), architecture).items():
            found[package].add(digest)
    return {package: sorted(digests) for package, digests in found.items()}


def write(name: str, pins: dict[str, str], digests: dict[str, list[str]]) -> None:
    """One lock file."""
    lines = [f"# Written by scripts/lock.py from requirements/{name}.in; do not edit."]
    for package in sorted(pins):
        options = "".join(f" \\\n    --hash=sha256:{digest}" for digest in digests[package])
        lines.append(f"{pins[package]}{options}")
    (ROOT / f"{name}.txt").write_text("\n".join(lines) + "\n")


def main() -> None:
    runtime = closure(direct("runtime"))
    dev = closure(direct("dev")) - runtime
    if wrong := [p for p in runtime | dev if p.startswith(FORBIDDEN)]:
        sys.exit(f"the lock would hold {', '.join(wrong)}: mark what requires it with '# no-deps'")
    pins = {p: f"{p}=={metadata.version(p)}" for p in runtime | dev}
    digests = hashes(pins)
    for name, packages in (("runtime", runtime), ("dev", dev)):
        write(name, {p: pins[p] for p in packages}, digests)
        print(f"requirements/{name}.txt: {len(packages)} packages")


if __name__ == "__main__":
    main()
