"""Whether the nodes of a joined cluster have what a run needs of them, before anything starts.

    every node          the folder that the program was started in, this Python, the same agentrl
                        and packages, the model
    nodes of workers    the user's code that episodes call
    nodes of learners   the user's code that the learner calls; the folder of checkpoints: all of
                        them and the driver share it, and can write there
    node of the first   where the trained model and pushed weights are written
    nodes of engines    the folder of pushed weights, where those go through a disk

A shared folder is shown by a file of the driver's that appears on the other node; that a node can
write to one, by a small file that it makes and removes. What lacks is told of all nodes at once.
"""

import secrets
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from agentrl.cluster.kinds import KINDS, Shared
from agentrl.cluster.node_facts import (
    NEEDED,
    NodeFacts,
    differences,
    facts_here,
    facts_of,
    seen_here,
)
from agentrl.cluster.placement import Cluster
from agentrl.config.edited import code_of
from agentrl.config.run import RunConfig
from agentrl.config.writable import model_place
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
    own = facts_of(facts_here(()))
    lacks: list[str] = []
    with ExitStack() as stack:
        shared = {
            name: stack.enter_context(shown(folder)) for name, folder in _shared(config).items()
        }
        for slots in nodes:
            processes = [name for slot in slots for name in cluster.processes(slot)]
            wanted = _wanted(config, processes, shared)
            written = _written(config, processes)
            address = places[slots[0]].address
            try:
                facts = cluster.facts(slots[0], list(wanted), written)
            except EnvironmentSetupError as error:
                lacks.append(f"{address} does not say what it has: {error}")
                continue
            lacks += [f"{address} has {each}: {_SAME}" for each in _differences(config, facts, own)]
            lacks += [
                _lack(address, path, need, found)
                for (path, need), found in zip(wanted.items(), facts.seen, strict=True)
                if found != seen_here(Path(path))
            ]
            lacks += [f"{address}: {trouble}" for trouble in facts.unwritable if trouble]
    return lacks


_FOLDER = "start the program in a folder that every node has"
_PYTHON = "install agentrl at the same place on every node"
_SAME = "install the same on every node (`agentrl doctor --ray-address` compares them)"
_MODEL = "--hf-checkpoint names a folder that every node has, with the same model"
_SAVE = (
    "--save names a folder that the nodes of the learner, and of engines of --eval-mode apart, "
    "share with this one"
)
_PUSHES = (
    "--update-weight-disk-dir names a folder that the nodes of engines share with the learner's"
)
_NEEDS: dict[Shared, str] = {"save": _SAVE, "pushes": _PUSHES}
_CODE = "names a file that the nodes which run it have, as it is here"
#: Of the groups whose code a kind of process loads, but for the program alone.
_OWN_CODE = ("--data-source-path",)


def _differences(config: RunConfig, facts: NodeFacts, own: NodeFacts) -> Iterator[str]:
    without_engines = config.is_supervised
    names = [name for name in NEEDED if not (without_engines and name.startswith("sglang"))]
    return differences(facts, own, names)


def _shared(config: RunConfig) -> dict[Shared, Path]:
    """Folders that nodes share."""
    folders: dict[Shared, Path] = {}
    if config.save is not None and not config.plays_only:
        folders["save"] = Path(config.save)
    if config.update_weight_transport == "disk" and config.update_weight_disk_dir is not None:
        folders["pushes"] = Path(config.update_weight_disk_dir)
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


def _wanted(
    config: RunConfig, processes: Sequence[str], shared: Mapping[Shared, str]
) -> dict[str, str]:
    """What has to be on a node with these processes as it is here, and why. `shared`: files that
    show a shared folder."""
    model = Path(str(config.hf_checkpoint)).resolve() / "config.json"
    wanted = {str(Path.cwd()): _FOLDER, sys.executable: _PYTHON, str(model): _MODEL}
    names = {name.rpartition("-")[0] for name in processes}
    kinds = [kind for name, kind in KINDS.items() if name in names]
    for kind in kinds:
        code = code_of(config, kind.loads)
        wanted |= {str(path): f"{f} {_CODE}" for path, f in code.items() if f not in _OWN_CODE}
    used = {name for kind in kinds for name in kind.shares}
    return wanted | {shared[name]: _NEEDS[name] for name in shared if name in used}


def _written(config: RunConfig, processes: Sequence[str]) -> list[tuple[str, str]]:
    """Flag and folder of what these processes write beside the run's directory: each rank of the
    learner its part of a checkpoint, the first one models and pushed weights."""
    if config.eval_only or config.plays_only:
        return []
    found: list[tuple[str, str]] = []
    if config.save is not None and any(name.startswith("learner-") for name in processes):
        found.append(("--save", config.save))
    if "learner-0" in processes:
        if (model := model_place(config)) is not None:
            found.append(("--save-hf", str(model.absolute())))
        if "pushes" in (shared := _shared(config)):
            found.append(("--update-weight-disk-dir", str(shared["pushes"])))
    return found


def _lack(address: str, path: str, need: str, found: str) -> str:
    if need in (_SAVE, _PUSHES):
        path = str(Path(path).parent)
    state = "has another" if found not in ("nothing", "folder") else "does not have"
    return f"{address} {state} {path}: {need}"
