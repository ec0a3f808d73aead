"""Record what slime's user files ask and return here, and the episodes that agentrl makes of it.

    python -m scripts.slime_files.record CHECKOUT [NAME ...] --commit ID [--packages FOLDER]

Each case is played twice: with the flags of the example's launch script as they are, and with its
functions overheard; both episodes have to be the same. Files of slime are copied to a folder that
is gone afterwards, with the edits of `examples/NAME.toml`. They run with this process's rights, and
what a scripted model writes as code is run by them.

`--packages` holds what examples import beside slime (`packages` and `sources` of a record). SGLang,
whose parser one of them calls, can be imported on a host without a GPU with
`agentrl/serving/standins` on PYTHONPATH and TORCHDYNAMO_DISABLE=1.
"""

import argparse
import hashlib
import importlib.metadata
import json
import os
import random
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
from aiohttp import web
from anyio.from_thread import start_blocking_portal

from agentrl.slime_modules import show
from scripts.slime_files.distilling import distilled
from scripts.slime_files.overheard import Heard, hear, serving
from scripts.slime_files.playing import Engine, Stage, episode_of, said, with_flags
from scripts.slime_files.records import (
    ROOT,
    Asked,
    Case,
    Edit,
    File,
    Record,
    differences,
    save_record,
)

EXAMPLES = Path(__file__).with_name("examples")
_SCRIPTS = ROOT / "tests" / "fixtures" / "slime_scripts.json"
#: Flags of a launch script that say how an episode is played and scored.
PLAYED = (
    *("--custom-generate-function-path", "--custom-rm-path", "--rm-type", "--reward-key"),
    *("--input-key", "--label-key", "--apply-chat-template", "--max-tokens-per-gpu"),
    *("--rollout-max-context-len", "--rollout-max-response-len", "--rollout-temperature"),
    *("--custom-reward-post-process-path", "--rm-url", "--use-opd", "--opd-type"),
    *("--opd-kl-coef", "--advantage-estimator"),
)
_OVERHEARD = "scripts.slime_files.overheard"


class Server(msgspec.Struct, frozen=True):
    """Somebody whom an example asks at a port of this host. `replies`: what a case's answers are
    wrapped in, with `ANSWER` in their place."""

    port: int
    replies: Any


class Played(msgspec.Struct, frozen=True):
    """A case: its row, what the engine says, and what a server answers."""

    name: str
    row: dict[str, Any]
    says: list[str]
    answers: list[Any] = []


class Example(msgspec.Struct, frozen=True):
    """What is played of an example.

    differs      what is another here than in slime, as pages say it
    folders      what stands on PYTHONPATH, below the checkout
    more         flags beside the script's
    packages     what it imports beside slime; `sources`: what no package index has of it
    environment  variables that lead it to its server
    distills     the module of slime's functions of distillation, in whose place agentrl has its own
                 teacher
    """

    script: str
    files: list[str]
    case: list[Played]
    differs: str = ""
    folders: tuple[str, ...] = ("",)
    edits: list[Edit] = []
    more: list[str] = []
    packages: list[str] = []
    sources: dict[str, str] = {}
    environment: dict[str, str] = {}
    server: Server | None = None
    distills: str | None = None


def main() -> None:
    """Record the named examples, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--commit", required=True, help="of slime, that the checkout is of")
    words = "a folder with packages of examples; may be given again"
    parser.add_argument("--packages", type=Path, action="append", default=[], help=words)
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    sys.path += map(str, given.packages)
    for name in given.names or sorted(path.stem for path in EXAMPLES.glob("*.toml")):
        example = msgspec.toml.decode((EXAMPLES / f"{name}.toml").read_bytes(), type=Example)
        record = anyio.run(recorded, example, given.checkout, given.commit)
        save_record(name, record)
        print(f"{name}: {len(record.cases)} episodes, {len(record.edits)} edited lines")


async def recorded(example: Example, checkout: Path, commit: str) -> Record:
    """Play all cases of an example."""
    flags = [*_flags(example.script), *example.more]
    os.environ |= example.environment
    show()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        files = [_laid(example, checkout, path, folder) for path in example.files]
        played = _cases(example, flags, folder)
        if example.distills is not None:
            played = distilled(example.distills, example.case, flags, folder)
        with _importable(folder, example.folders):
            cases = [case async for case in played]
    installed = {name: importlib.metadata.version(name) for name in example.packages}
    return Record(
        commit=commit,
        script=example.script,
        differs=example.differs,
        files=files,
        edits=example.edits,
        packages=example.sources | installed,
        flags=flags,
        cases=cases,
    )


@contextmanager
def _importable(root: Path, folders: Sequence[str]) -> Iterator[None]:
    """Import from folders below `root` first; afterwards what came from there is forgotten."""
    before = list(sys.path)
    sys.path[:0] = [str(root / name) for name in folders]
    try:
        yield
    finally:
        sys.path[:] = before
        for name, module in list(sys.modules.items()):
            if (getattr(module, "__file__", None) or "").startswith(f"{root}/"):
                del sys.modules[name]


def _flags(script: str) -> list[str]:
    """Those of PLAYED, as the script gives them."""
    rows = json.loads(_SCRIPTS.read_text())["scripts"]
    argv = next(row["argv"] for row in rows if row["path"] == script)
    found: list[str] = []
    for at, word in enumerate(argv):
        if word in PLAYED:
            found.append(word)
            found += [value for value in argv[at + 1 : at + 2] if not value.startswith("--")]
    return found


def _laid(example: Example, checkout: Path, path: str, folder: Path) -> File:
    """Copy a file, with its edits."""
    content = (checkout / path).read_bytes()
    lines = content.decode().splitlines(keepends=True)
    for edit in (one for one in example.edits if one.path == path):
        if lines[edit.line - 1].rstrip("\n") != edit.was:
            raise SystemExit(f"{path}:{edit.line} is {lines[edit.line - 1]!r}, not {edit.was!r}")
        lines[edit.line - 1] = f"{edit.now}\n"
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_text("".join(lines))
    return File(path, hashlib.sha256(content).hexdigest())


async def _cases(example: Example, flags: Sequence[str], folder: Path) -> AsyncIterator[Case]:
    rows = [case.row for case in example.case]
    function, reward = (
        _value(flags, f"--custom-{name}-path") for name in ("generate-function", "rm")
    )
    assert function is not None
    heard_flags = with_flags(
        flags,
        custom_generate_function_path=f"{_OVERHEARD}:generate",
        custom_rm_path=f"{_OVERHEARD}:reward_func",
    )
    async with Stage(flags, rows, folder) as plain, Stage(heard_flags, rows, folder) as overheard:
        for place, case in enumerate(example.case):
            heard = hear(function, reward)
            random.seed(place)
            async with _answering(example, case, []):
                alone = episode_of(await plain.play(place, Engine(said(case.says))))
            random.seed(place)
            engine = Engine(said(case.says))
            async with _answering(example, case, heard.outside):
                episode = episode_of(await overheard.play(place, engine))
            if differs := list(differences(alone, episode)):
                raise SystemExit(f"{case.name}: overheard, the episode is another: {differs}")
            if len(engine.turns) != len(case.says):
                raise SystemExit(f"{case.name}: {len(engine.turns)} of {len(case.says)} are said")
            yield _case(case, heard, engine, episode)


def _case(case: Played, heard: Heard, engine: Engine, episode: Any) -> Case:
    return Case(
        name=case.name,
        row=case.row,
        given=heard.given[0],
        turns=engine.turns,
        asked=heard.asked,
        outside=heard.outside,
        returned=heard.returned,
        judged=heard.judged,
        episode=episode,
    )


def _value(flags: Sequence[str], name: str) -> str | None:
    return flags[flags.index(name) + 1] if name in flags else None


@asynccontextmanager
async def _answering(example: Example, case: Played, asked: list[Asked]) -> AsyncIterator[None]:
    """The server of an example, with the answers of a case."""
    if example.server is None:
        yield
        return
    left, replies = iter(case.answers), example.server.replies

    async def reply(request: web.Request, body: Any) -> tuple[int, Any]:
        del request, body
        return 200, _wrapped(replies, next(left))

    # in a thread of its own: an example may hold the event loop while it waits
    with start_blocking_portal() as portal:
        server = serving(reply, asked, example.server.port)
        with portal.wrap_async_context_manager(server):
            yield


def _wrapped(replies: Any, answer: Any) -> Any:
    if replies == "ANSWER":
        return answer
    if isinstance(replies, list):
        return [_wrapped(item, answer) for item in replies]
    if isinstance(replies, dict):
        return {key: _wrapped(item, answer) for key, item in replies.items()}
    return replies


if __name__ == "__main__":
    main()
