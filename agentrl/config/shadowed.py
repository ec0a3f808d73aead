"""Whether Python would take the packages that a run stands on from where they are installed.

A checkout in PYTHONPATH comes before them: launch scripts of other trainers put Megatron-LM there,
and then another `megatron.core` is imported than the one whose version is known. Nothing is
imported to find out. A package that is installed from a checkout is left alone.
"""

import sys
from collections.abc import Iterator
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path

from agentrl.errors import EnvironmentSetupError

__all__ = ["check_packages", "shadow_of"]

#: Distributions, and the package of each that a run imports.
PACKAGES = {
    "megatron-core": "megatron.core",
    "sglang": "sglang",
    "sglang-router": "sglang_router",
    "torch": "torch",
    "ray": "ray",
    "transformers": "transformers",
}


def check_packages() -> None:
    """Raises EnvironmentSetupError naming each package that would come from elsewhere."""
    if lines := list(_about_shadows()):
        raise EnvironmentSetupError("\n".join(lines))


def _about_shadows() -> Iterator[str]:
    for distribution, package in PACKAGES.items():
        if (place := shadow_of(distribution)) is not None:
            yield (
                f"Python would take {package} from {place}, and not the {distribution} "
                f"{metadata.version(distribution)} that is installed and that agentrl is made for: "
                f"take {_root(place, package)} out of PYTHONPATH"
            )


def shadow_of(distribution: str) -> Path | None:
    """The folder that the package of `distribution` would be imported from, where that is not where
    it is installed."""
    package = PACKAGES[distribution]
    try:
        root = Path(str(metadata.distribution(distribution).locate_file("")))
    except metadata.PackageNotFoundError:
        return None
    installed = root.joinpath(*package.split("."))
    found = _folder(package)
    if found is None or not installed.is_dir() or found.resolve() == installed.resolve():
        return None
    return found


def _folder(package: str) -> Path | None:
    """Where `package` would be found, as the import of it goes about it."""
    paths, name = list(sys.path), ""
    for part in package.split("."):
        name = f"{name}.{part}" if name else part
        spec = PathFinder.find_spec(name, paths)
        if spec is None or spec.submodule_search_locations is None:
            return None
        paths = list(spec.submodule_search_locations)
    return Path(paths[0])


def _root(place: Path, package: str) -> Path:
    return place.parents[package.count(".")]
