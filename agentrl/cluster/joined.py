"""Whether the nodes of a joined cluster have what a run needs of them, before anything starts.

    every node          the folder that the program was started in, this Python, the model
    nodes of learners   the folder of checkpoints: all of them and the driver share it
    nodes of engines    the folder of pushed weights, where those go through a disk

A shared folder is shown by a file of the driver's that appears on the other node. What lacks is
told of all nodes at once.
"""

import secrets
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from agentrl.cluster.host import seen_here
from agentrl.cluster.placement import Cluster
from agentrl.cluster.slots import NodePlace
from agentrl.config.run import RunConfig
from agentrl.disk import make_folder
from agentrl.errors import EnvironmentSetupError

__all__ = ["check_nodes", "lacks_of", "shown"]


def check_nodes(cluster: Cluster, config: RunConfig) -> None:
    """Raises EnvironmentSetupError with a line for each node and thing that it lacks."""
    places = cluster.places()
    nodes: dict[str, list[str]] = {}
    for slot, place in places.items():
        nodes.setdefault(place.node, []).append(slot)
    if len(nodes) < 2:
        return
    if lacks := _lacks(cluster, config, nodes.values()):
        raise EnvironmentSetupError("\n  ".join(["nodes of the cluster lack something:", *lacks]))


def lacks_of(cluster: Cluster, config: RunConfig, slot: str) -> list[str]:
    """A line for each thing that the node of a slot lacks. Raises SlotLostError when it has gone,
    EnvironmentSetupError for a shared folder that this node cannot write to."""
    return _lacks(cluster, config, [[slot]])


def _lacks(cluster: Cluster, config: RunConfig, nodes: Iterable[Sequence[str]]) -> list[str]:
    """A line for each thing that a node lacks, of nodes with these slots."""
    places = cluster.places()
    model = Path(str(config.hf_checkpoint)).resolve() / "config.json"
    usual = {str(Path.cwd()): _FOLDER, sys.executable: _PYTHON, str(model): _MODEL}
    expected = {path: seen_here(Path(path)) for path in usual}
    lacks: list[str] = []
    with ExitStack() as stack:
        shared = {
            role: stack.enter_context(shown(folder)) for role, folder in _shared(config).items()
        }
        for slots in nodes:
            wanted = usual | _wanted_of(cluster, slots, shared)
            told = cluster.seen(slots[0], list(wanted))
            for (path, need), found in zip(wanted.items(), told, strict=True):
                if found != expected.get(path, seen_here(Path(path))):
                    lacks.append(_lack(places[slots[0]], path, need, found))
    return lacks


_FOLDER = "start the program in a folder that every node has"
_PYTHON = "install agentrl at the same place on every node"
_MODEL = "--hf-checkpoint names a folder that every node has, with the same model"
_SAVE = "--save names a folder that the nodes of the learner share with this one"
_PUSHES = (
    "--update-weight-disk-dir names a folder that the nodes of engines share with the learner's"
)


def _shared(config: RunConfig) -> dict[str, Path]:
    """Folders that nodes share, by the kind of process that uses it."""
    folders = {} if config.plays_only or config.save is None else {"learner": Path(config.save)}
    if config.update_weight_transport == "disk" and config.update_weight_disk_dir is not None:
        folders["engine"] = Path(config.update_weight_disk_dir)
    return folders


@contextmanager
def shown(folder: Path) -> Iterator[str]:
    """Path of a new file in `folder`, there until the block ends."""
    file = folder / f".agentrl-{secrets.token_hex(8)}"
    try:
        make_folder(folder, exist_ok=True)
        file.write_text(secrets.token_hex(8))
    except OSError as error:
        raise EnvironmentSetupError(f"cannot write to {folder}: {error}") from error
    try:
        yield str(file)
    finally:
        file.unlink(missing_ok=True)


def _wanted_of(cluster: Cluster, slots: Iterable[str], shared: dict[str, str]) -> dict[str, str]:
    """Files that show a shared folder, of those that processes in `slots` use."""
    kinds = {name.rpartition("-")[0] for slot in slots for name in cluster.processes(slot)}
    if "learner" in kinds and "engine" in shared:  # it writes what engines read
        kinds.add("engine")
    needs = {"learner": _SAVE, "engine": _PUSHES}
    return {shared[kind]: needs[kind] for kind in shared if kind in kinds}


def _lack(place: NodePlace, path: str, need: str, found: str) -> str:
    if need in (_SAVE, _PUSHES):
        path = str(Path(path).parent)
    state = "has another" if found not in ("nothing", "folder") else "does not have"
    return f"{place.address} {state} {path}: {need}"
