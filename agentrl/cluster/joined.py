"""Whether the nodes of a joined cluster have what a run needs of them, before anything starts.

    every node          the folder that the program was started in, this Python, the same agentrl
                        and packages, the model; --run-dir, where it writes logs; the folder of
                        temporary files that the driver has (TMPDIR), in which the run's private one
                        is made; the interfaces that variables name
    nodes of workers    the user's code that episodes call
    nodes of learners   the user's code that the learner calls; the weights that it reads; the
                        folder of checkpoints: all of them and the driver share it, and can write
                        there
    node of the first   where the trained model and pushed weights are written; under --colocate
                        shared memory for a push
    nodes of engines    the weights; the folder of pushed weights, where those go through a disk,
                        and that of the engine's own copy

A shared folder is shown by a file of the driver's that appears on the other node; that a node can
write to one, by a small file that it makes and removes. Of files of weights sizes are compared, of
others what is in them. What lacks is told of all nodes at once.
"""

import secrets
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from agentrl.cluster.interfaces import lacking_interfaces, loopback_interfaces
from agentrl.cluster.kinds import ProcessKind, Shared, kinds_of
from agentrl.cluster.node_facts import (
    NEEDED,
    NodeFacts,
    differences,
    facts_here,
    facts_of,
    seen_here,
)
from agentrl.cluster.placement import Cluster
from agentrl.cluster.weights_there import files_of_weights
from agentrl.config.edited import code_of
from agentrl.config.engines import shares_memory
from agentrl.config.env_vars import env_vars, train_env_vars
from agentrl.config.room import lack_of_shared_memory
from agentrl.config.run import RunConfig
from agentrl.config.writable import model_place
from agentrl.disk import make_folder
from agentrl.errors import ConfigError, EnvironmentSetupError

__all__ = ["check_nodes", "lacks_of", "shown"]


def check_nodes(cluster: Cluster, config: RunConfig) -> None:
    """Raises EnvironmentSetupError with a line for each node and thing that it lacks."""
    places = cluster.places()
    nodes: dict[str, list[str]] = {}
    for slot, place in places.items():
        nodes.setdefault(place.node, []).append(slot)
    is_one = len(nodes) < 2
    if is_one and not (config.ray_address is not None and shares_memory(config)):
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
    meet_on_nodes = len({places[slot].node for slot in places if _meets(cluster.kinds(slot))}) > 1
    with ExitStack() as stack:
        shared = {
            name: stack.enter_context(shown(folder)) for name, folder in _shared(config).items()
        }
        for slots in nodes:
            processes: dict[str, ProcessKind] = {}
            for slot in slots:
                processes |= cluster.kinds(slot)
            wanted = _wanted(config, processes, shared)
            written = _written(config, processes)
            address = places[slots[0]].address
            try:
                facts = cluster.facts(slots[0], list(wanted), written)
            except EnvironmentSetupError as error:
                lacks.append(f"{address} does not say what it has: {error}")
                continue
            lacks += [f"{address} has {each}: {_SAME}" for each in _differences(config, facts, own)]
            lacks += _brief(
                {
                    _lack(address, path, need, found): need
                    for (path, need), found in zip(wanted.items(), facts.seen, strict=True)
                    if found != seen_here(Path(path))
                }
            )
            lacks += [f"{address}: {trouble}" for trouble in facts.unwritable if trouble]
            lacks += [f"{address} {each}" for each in _interfaces(config, processes, facts)]
            if meet_on_nodes:
                lacks += [f"{address} {each}" for each in _loopback(config, processes, facts)]
            memory = "learner-0" in processes and lack_of_shared_memory(config, facts.shared_memory)
            lacks += [f"{address}: {memory}"] if memory else []
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
_WEIGHTS = (
    "names weights that the nodes which read them have at this place, as they are here; copy them "
    "there (again), or name a folder that nodes share"
)
_INTERFACE = (
    "name one that every node has, or leave the variable out: each node then takes the interface "
    "with its own address"
)
#: Lines of one need and one node that are told, where more files lack.
_MOST = 3
_CODE = "names a file that the nodes which run it have, as it is here"
#: Of the groups whose code a kind of process loads, but for the program alone.
_OWN_CODE = ("--data-source-path",)


def _differences(config: RunConfig, facts: NodeFacts, own: NodeFacts) -> Iterator[str]:
    names = [name for name in NEEDED if config.has_engines or not name.startswith("sglang")]
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
    config: RunConfig, processes: Mapping[str, ProcessKind], shared: Mapping[Shared, str]
) -> dict[str, str]:
    """What has to be on a node with these processes as it is here, and why. `shared`: files that
    show a shared folder."""
    model = Path(str(config.hf_checkpoint)).resolve() / "config.json"
    wanted = {str(Path.cwd()): _FOLDER, sys.executable: _PYTHON, str(model): _MODEL}
    kinds = kinds_of(processes).values()
    for kind in kinds:
        code = code_of(config, kind.loads)
        wanted |= {str(path): f"{f} {_CODE}" for path, f in code.items() if f not in _OWN_CODE}
    with suppress(ConfigError):  # what cannot be read here either is told by who reads it
        for path, flag in files_of_weights(config, processes):
            wanted.setdefault(str(path), f"{flag} {_WEIGHTS}")
    used = {name for kind in kinds for name in kind.shares}
    return wanted | {shared[name]: _NEEDS[name] for name in shared if name in used}


def _written(config: RunConfig, processes: Mapping[str, ProcessKind]) -> list[tuple[str, str]]:
    """Flag and folder of what a node with these processes writes: its logs, the run's private
    files, each rank of the learner its part of a checkpoint, the first one models and pushed
    weights, and an engine its copy of those."""
    is_continued = config.is_continued
    run = ("--resume", config.resume) if is_continued else ("--run-dir", config.run_dir)
    found = [(run[0], str(Path(run[1]).absolute())), ("TMPDIR", tempfile.gettempdir())]
    copy = config.update_weight_local_checkpoint_dir
    pushes = config.update_weight_transport == "disk" and not config.plays_only
    kinds = kinds_of(processes)
    if pushes and copy is not None and "engine" in kinds:
        found.append(("--update-weight-local-checkpoint-dir", copy))
    if config.eval_only or config.plays_only:
        return found
    if config.save is not None and "learner" in kinds:
        found.append(("--save", config.save))
    if "learner-0" in processes:
        if (model := model_place(config)) is not None:
            found.append(("--save-hf", str(model.absolute())))
        if "pushes" in (shared := _shared(config)):
            found.append(("--update-weight-disk-dir", str(shared["pushes"])))
    return found


def _interfaces(
    config: RunConfig, processes: Mapping[str, ProcessKind], facts: NodeFacts
) -> Iterator[str]:
    """What variables name and a node has not."""
    for whose, mine in _variables(config, processes, facts) if facts.interfaces else ():
        for each in lacking_interfaces(mine, facts.interfaces):
            there = ", ".join(facts.interfaces)
            yield f"has no interface for {each} of {whose}, but {there}: {_INTERFACE}"


def _loopback(
    config: RunConfig, processes: Mapping[str, ProcessKind], facts: NodeFacts
) -> Iterator[str]:
    """What variables name and no other node is reached by, where ranks or engines meet."""
    if not _meets(processes):
        return
    for whose, mine in _variables(config, processes, facts):
        for each in loopback_interfaces(mine):
            yield f"has {each} of {whose}, by which no other node is reached: {_INTERFACE}"


def _variables(
    config: RunConfig, processes: Mapping[str, ProcessKind], facts: NodeFacts
) -> Iterator[tuple[str, dict[str, str]]]:
    """Whose they are, and the variables that count: of a node itself, and what the run is told to
    set."""
    told = {"its own environment": facts.interface_variables, "--env-vars": env_vars(config)}
    if "learner" in kinds_of(processes):
        told["--train-env-vars"] = train_env_vars(config)
    said = {name: whose for whose, variables in told.items() for name in variables}
    for whose, variables in told.items():
        yield whose, {name: value for name, value in variables.items() if said[name] == whose}


def _meets(processes: Mapping[str, ProcessKind]) -> bool:
    """Whether learner ranks or engines are among them, which form collectives."""
    return not kinds_of(processes).keys().isdisjoint(("learner", "engine"))


def _brief(lacks: Mapping[str, str]) -> Iterator[str]:
    """Lines, of those of one need the first ones and how many there are besides."""
    lines = {need: [each for each in lacks if lacks[each] == need] for need in lacks.values()}
    for those in lines.values():
        shown = those[:_MOST]
        more = len(those) - len(shown)
        yield from shown[:-1]
        yield shown[-1] + (f" ({more} files more are not as they are here)" if more else "")


def _lack(address: str, path: str, need: str, found: str) -> str:
    if need in (_SAVE, _PUSHES):
        path = str(Path(path).parent)
    if found.endswith(" bytes"):
        return f"{address} has {found} of {path}, and this host {seen_here(Path(path))}: {need}"
    state = "has another" if found not in ("nothing", "folder") else "does not have"
    return f"{address} {state} {path}: {need}"
