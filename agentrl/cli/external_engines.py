"""Before the start: whether the servers of `--rollout-external-engine-addrs` are there, and can be
engines of this run.

Each is asked for its settings and its model (`agentrl.serving.external` compares). Where weights go
through a disk, each is also asked to load from an empty folder there: SGLang refuses that in other
words than a folder that it does not see, and keeps its weights.
"""

import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import anyio

from agentrl.cluster.spec import read_model_facts
from agentrl.config.device_defaults import for_device
from agentrl.config.eval_sets import asks_for_stops, engine_context, eval_sets
from agentrl.config.external_engines import about_external_engines, engine_urls, external_key
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError, EngineError
from agentrl.serving.control import EngineControl
from agentrl.serving.external import Wanted, notes_on_server, refusals_of_server
from agentrl.serving.http_control import EngineRefusedError
from agentrl.types import EngineAddress
from agentrl.visible import shown_url

__all__ = ["ask_engines", "check_external_engines"]

#: Seconds that a server may take for each answer.
_ASK_S = 30.0
#: SGLang's words for a folder that it sees and that holds no model.
_SEEN = "Cannot find any model weights with"
_FLAG, _KEY = "--rollout-external-engine-addrs", "--rollout-external-api-key-var"
_UNAUTHORIZED = 401


def check_external_engines(config: RunConfig, *, dry_run: bool = False) -> list[str]:
    """Notes for the user. Raises ConfigError with all that is wrong with any of the servers. For a
    dry run they need not be there; addresses that are none are refused elsewhere."""
    if not config.num_engines or not config.rollout_external_engine_addrs:
        return []
    if list(about_external_engines(config)):
        return []
    return anyio.run(ask_engines, config, dry_run)


async def ask_engines(config: RunConfig, dry_run: bool = False) -> list[str]:
    """As `check_external_engines`, of a run that has such engines."""
    wanted = _wanted(config)
    found: dict[str, tuple[list[str], list[str]]] = {}

    async def ask(url: str) -> None:
        found[url] = await _ask(url, wanted, dry_run)

    async with anyio.create_task_group() as group:
        for url in engine_urls(config):
            group.start_soon(ask, url)
    told = [(f"{_FLAG} {shown_url(url)}", *found[url]) for url in engine_urls(config)]
    if lines := [f"{whose}: {line}" for whose, refused, _ in told for line in refused]:
        raise ConfigError("\n".join(lines))
    return [f"{whose}: {note}" for whose, _, notes in told for note in notes]


def _wanted(config: RunConfig) -> Wanted:
    sets = eval_sets(config)
    model_dir = Path(str(config.hf_checkpoint))
    # Of a cluster nobody knows yet whether it has GPUs; who names one has them.
    resolved = for_device(config, "cuda" if config.device == "auto" else config.device)
    try:
        installed = version("sglang")
    except PackageNotFoundError:
        installed = None
    return Wanted(
        config=resolved,
        model_dir=model_dir,
        version=installed,
        max_context=read_model_facts(model_dir, engine_context(config, sets)).max_context,
        has_stops=asks_for_stops(config, sets.values()),
        key=external_key(config),
    )


async def _ask(url: str, wanted: Wanted, dry_run: bool) -> tuple[list[str], list[str]]:
    """What is refused of one server, and notes on it."""
    engine = EngineAddress("the server", url)
    try:
        async with EngineControl(engine, timeout_s=_ASK_S, key=wanted.key) as control:
            said = await control.info()
            refused = list(refusals_of_server(wanted, said))
            if not (refused or dry_run) and _is_pushed_to_by_disk(wanted.config):
                refused += await _about_folder(control, wanted.config)
    except EngineError as error:
        if isinstance(error, EngineRefusedError) and error.status == _UNAUTHORIZED:
            which = "another key than it was shown" if wanted.key else "a key"
            return [f"it wants {which}: name the variable that holds it with {_KEY}"], []
        if dry_run:
            return [], [f"not checked, and a run needs it: {error}"]
        return [f"{error}; start it first, with {_command(wanted)}"], []
    return refused, list(notes_on_server(wanted, said))


def _command(wanted: Wanted) -> str:
    dtype = wanted.config.sglang.get("dtype", "float32")
    return f"`python -m sglang.launch_server --model-path {wanted.model_dir} --dtype {dtype}`"


def _is_pushed_to_by_disk(config: RunConfig) -> bool:
    return config.update_weight_transport == "disk" and not config.plays_only


async def _about_folder(control: EngineControl, config: RunConfig) -> list[str]:
    """Whether the server sees the folder that pushes will be written to."""
    shared = _made(str(config.update_weight_disk_dir))
    with tempfile.TemporaryDirectory(dir=shared, prefix=".agentrl-seen-") as folder:
        try:
            await control.load(folder, "none")
        except EngineRefusedError as error:
            if _SEEN in str(error) and folder in str(error):
                return []
            said = str(error)
        else:
            said = "it says that it loaded a model from an empty folder there"
    line = (
        f"it does not see --update-weight-disk-dir {shared}, where pushes are written: mount the "
        "same folder under the same path where it runs, or send weights over a collective "
        f"(--update-weight-transport nccl); {said}"
    )
    return [line]


def _made(place: str) -> Path:
    folder = Path(place).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return folder
