"""The pages tell the truth: what they name exists, and what they show runs.

Read are README.md, the other pages at the top, and everything under docs/ and examples/. Commands
are parsed as `--dry-run` would, and nothing is started.
"""

import ast
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from agentrl import errors
from agentrl.actors.group_scoring import FILTERS
from agentrl.algorithms.correction import CORRECTIONS
from agentrl.algorithms.custom import LOSSES
from agentrl.algorithms.custom_advantages import ADVANTAGES
from agentrl.algorithms.custom_rewards import REWARDS as POST_PROCESSES
from agentrl.algorithms.load import ESTIMATORS
from agentrl.buffer.ledger import Ledger
from agentrl.cli.main import main as sub_command
from agentrl.columns import COLUMNS
from agentrl.config.answers import row_of
from agentrl.config.command_line import Program, known_flags
from agentrl.config.resolve import parse
from agentrl.envs.named import REWARDS, TOOLS
from agentrl.envs.registry import GROUP
from agentrl.learner.hooks import KINDS
from agentrl.telemetry.metrics import REGISTRY
from agentrl.tokens.formats.load import GROUP as FORMATS
from agentrl.types import Fate, Outcome, StopReason
from agentrl.wire.messages import Message

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
)
DESIGN = ROOT / "docs" / "design.md"

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"`([^`]+)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
PLACE = re.compile(
    r"(?<![\w/.-])(?:agentrl|benchmarks|docs|requirements|scripts|tests|\.ci)/(?:[\w.-]*\w/?)+"
)
DOTTED = re.compile(r"(?<![\w/.-])agentrl(?:\.\w+)+(?::\w+)?")
FLAG = re.compile(r"(?<![\w-])--[a-z][\w-]*[\w*]")
TEST = re.compile(r"(?<![\w/.])(?:test_\w+|Test[A-Z]\w+)(?![\w.])")
METRIC = re.compile(r"`((?:rollout|train|buffer|perf|eval)/[a-z0-9_/]+)`")
COMMAND = re.compile(r"python (train_async|train)\.py\b([^\n`#]*)")


def on_every_page(test: object) -> object:
    names = [str(page.relative_to(ROOT)) for page in PAGES]
    return pytest.mark.parametrize("page", PAGES, ids=names)(test)


def blocks(text: str, language: str) -> list[str]:
    return [body for found, body in FENCE.findall(text) if found == language]


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text())


# ---- links and names ----------------------------------------------------------------------------


@cache
def anchors(page: Path) -> frozenset[str]:
    titles = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", title.lower()) for title in titles)
    return frozenset(title.strip().replace(" ", "-") for title in plain)


@on_every_page
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for target in LINK.findall(prose(page)):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        place = (page.parent / name).resolve() if name else page
        assert place.exists(), f"{target} leads nowhere"
        if anchor:
            assert anchor in anchors(place), f"{target}: no such heading"


@on_every_page
def test_every_path_exists(page: Path) -> None:
    missing = {p for p in PLACE.findall(page.read_text()) if not (ROOT / p).exists()}
    assert not missing


@on_every_page
def test_every_dotted_name_exists(page: Path) -> None:
    named = set(DOTTED.findall(page.read_text())) - {
        GROUP,
        TOOLS,
        REWARDS,
        FORMATS,
        FILTERS,
        LOSSES.group,
        *(kind.group for kind in (POST_PROCESSES, ADVANTAGES, CORRECTIONS)),
        *(kind.group for kind in KINDS.values()),
        ESTIMATORS.group,
    }
    assert not {name for name in named if not resolves(name.replace(":", "."))}


def resolves(dotted: str) -> bool:
    """Whether a module, or a name at the top of one, is called so; nothing is imported."""
    parts = dotted.split(".")
    for size in range(len(parts), 0, -1):
        place = ROOT.joinpath(*parts[:size])
        rest = parts[size:]
        if place.is_dir():
            return not rest or rest[0] in defined(place / "__init__.py")
        if place.with_suffix(".py").is_file():
            return not rest or rest[0] in defined(place.with_suffix(".py"))
    return False


@cache
def defined(module: Path) -> frozenset[str]:
    names: set[str] = set()
    for node in ast.parse(module.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            names.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names.update(target.id for target in targets if isinstance(target, ast.Name))
    return frozenset(names)


@on_every_page
def test_every_test_exists(page: Path) -> None:
    assert not set(TEST.findall(page.read_text())) - all_tests()


@cache
def all_tests() -> frozenset[str]:
    names: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        names |= {path.stem, *(n for n in defined(path) if n.lower().startswith("test"))}
    return frozenset(names)


@on_every_page
def test_every_metric_is_declared(page: Path) -> None:
    assert not [name for name in METRIC.findall(page.read_text()) if REGISTRY.find(name) is None]


@on_every_page
def test_no_place_of_a_machine_is_named(page: Path) -> None:
    assert not re.findall(r"(?<![\w.-])/(?:work|tmp|home|root|mnt)\b", page.read_text())


# ---- flags and commands -------------------------------------------------------------------------


#: Pages that name flags of others too.
OF_OTHERS = (
    *("from-slime.md", "reference.md", "faq.md", "debugging.md", "CHANGELOG.md"),
    "0027-a-hook-of-slime-is-called-if-what-it-is-given-exists.md",
    "0029-true-on-policy-mode-is-refused.md",
)


@on_every_page
def test_every_flag_exists(page: Path) -> None:
    flags = {flag for text in flag_texts(page) for flag in FLAG.findall(text)}
    if page.name in OF_OTHERS:
        flags = {flag for flag in flags if row_of(flag) is None}
    assert not [flag for flag in flags if not known(flag)]


def flag_texts(page: Path) -> Iterator[str]:
    """What speaks of agentrl's flags: all but the commands of other programs."""
    drawings = "".join(blocks(page.read_text(), ""))
    yield re.sub(r".*-->.*", "", drawings)  # a label on an arrow is no flag
    yield SPAN.sub("", prose(page))
    for span in SPAN.findall(prose(page)):
        if span.startswith(("--", "python train")):
            yield span


def known(flag: str) -> bool:
    """A spelling, its negation, or a pattern such as `--sglang-FIELD` or `--router-*`."""
    plans = (ROOT / "agentrl/cli/plan.py").read_text()
    flags = {"--help", *known_flags(), *re.findall(r'^        "(--[a-z-]+)",$', plans, re.M)}
    start = re.split("[A-Z*]", flag)[0]
    if start != flag:
        return start == "--no-" or any(name.startswith(start) for name in flags)
    return flag in flags or flag.replace("--no-", "--", 1) in flags


def commands() -> list[tuple[str, Program, list[str]]]:
    """Those of examples go on from the commands before them: `test_docs_commands.py` has them."""
    found: list[tuple[str, Program, list[str]]] = []
    for page in (page for page in PAGES if not page.is_relative_to(ROOT / "examples")):
        for name, flags in COMMAND.findall(page.read_text().replace("\\\n", " ")):
            program: Program = "train" if name == "train" else "train_async"
            found.append((page.name, program, flags.split()))
    return found


@pytest.mark.parametrize(("page", "program", "argv"), commands())
def test_every_shown_command_is_accepted(
    page: str, program: Program, argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agentrl").symlink_to(ROOT / "agentrl")
    if "--prompt-data" in argv:
        (tmp_path / argv[argv.index("--prompt-data") + 1]).write_text('{"name": "x"}\n')
    if "--sglang-config" in argv:
        (shown,) = blocks((ROOT / "docs" / page).read_text(), "yaml")
        (tmp_path / argv[argv.index("--sglang-config") + 1]).write_text(shown)
    if "--rollout-external-api-key-var" in argv:
        monkeypatch.setenv(argv[argv.index("--rollout-external-api-key-var") + 1], "SECRET")
    assert parse([*argv, "--dry-run"], program).dry_run, page


@on_every_page
def test_every_make_target_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    shown = [*SPAN.findall(prose(page)), *blocks(page.read_text(), "bash")]
    named = {name for text in shown for name in re.findall(r"^make ([a-z-]+)", text, re.MULTILINE)}
    assert named <= targets


@on_every_page
def test_every_sub_command_exists(
    page: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in set(re.findall(r"`agentrl ([a-z-]+)", page.read_text())):
        try:
            code: object = sub_command([name, "--help"])
        except SystemExit as ended:
            code = ended.code
        assert code == 0, name


@on_every_page
def test_every_python_example_compiles(page: Path) -> None:
    for source in blocks(page.read_text(), "python"):
        compile(source, str(page), "exec")


# ---- the design page ----------------------------------------------------------------------------


def column(header: str) -> list[str]:
    """First cells, without their marks, of the design's table with this first header."""
    (rows,) = re.findall(
        rf"^\| {header} \|.*\n\|[ |-]+\|\n((?:\|.*\n)+)", DESIGN.read_text(), re.MULTILINE
    )
    return [line.split("|")[1].strip().strip("`") for line in rows.splitlines()]


@pytest.mark.parametrize(
    ("header", "names"),
    [
        ("outcome", list(Outcome)),
        ("fate", list(Fate)),
        ("stop reason", list(StopReason)),
        ("column", list(COLUMNS)),
    ],
)
def test_the_words_of_the_design_are_those_of_the_code(header: str, names: list[str]) -> None:
    assert sorted(column(header)) == sorted(map(str, names))


def test_the_design_lists_every_message() -> None:
    told = column("from a peer") + column("to a peer")
    assert sorted(told) == sorted(kind.__name__ for kind in get_args(Message))


def test_the_design_lists_every_table_of_the_ledger(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.db"):
        pass
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as db:
        names = [
            name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type='table'")
        ]
    assert sorted(column("table")) == sorted(names)


def test_the_design_lists_every_exit_code() -> None:
    kinds = (getattr(errors, name) for name in errors.__all__)
    codes = {kind.exit_code for kind in kinds} | {0, 130, 143}
    assert {int(code) for code in column("code")} == codes


def test_the_design_says_of_every_exit_code_what_to_do() -> None:
    rows = re.findall(r"^\| \d+ \|([^|]+)\|([^|]+)\|$", DESIGN.read_text(), re.MULTILINE)
    assert len(rows) == len(column("code"))
    assert all(meaning.strip() and advice.strip() for meaning, advice in rows)


# ---- decisions ----------------------------------------------------------------------------------


def test_decisions_are_numbered_without_a_gap_and_listed() -> None:
    folder = ROOT / "docs" / "adr"
    pages = sorted(folder.glob("[0-9]*.md"))
    index = (folder / "README.md").read_text()
    assert [page.name[:4] for page in pages] == [f"{n:04d}" for n in range(1, len(pages) + 1)]
    for number, page in enumerate(pages, start=1):
        title = re.match(rf"# {number}\. (.+)\n", page.read_text())
        assert title, f"{page.name} must begin with '# {number}. '"
        assert f"| [{page.name[:4]}]({page.name}) | {title[1]} |" in index
