"""How a session of pytest runs: what is played first, and what is told at once."""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Iterator

import pytest
from _pytest.terminal import TerminalReporter
from xdist.scheduler import LoadFileScheduling

from tests.slices import of_the_day, of_the_part

#: Files of many tests that take minutes all the same.
_LONG = {
    f"test_{name}.py"
    for name in ("flag_reads", "learner_resume", "plants", "serving_families", "tokens_long_turns")
}
_LONG |= {f"test_{name}_ranks.py" for name in ("megatron", "objectives")}
_LONG |= {f"test_megatron_{name}.py" for name in ("logprobs", "state_ranks", "step", "weights")}
#: Of them, those whose cases take minutes each: processes share them.
_BY_CASE = ("/test_plants.py", "/test_tokens_long_turns.py")
#: Of the files that take turns, those that every day plays all the same.
_DAILY = {f"test_{name}.py" for name in ("real_loop", "serving_engines", "megatron_ranks")}
_DAILY |= {"test_learner_deaths.py", "test_durable.py"}  # of the fault lab
#: Days until each of the others has been played.
_TURNS = 7
#: Cases of one test that a day plays at most, where cases take seconds: in these folders, and in
#: files that are marked as slow. A list that a file itself cuts by the day is no longer.
_CASES = 12
_SLOW_FOLDERS = {"parity", "integration", "security"}
#: What a machine lacks, by what the reason of a skipped test says of it.
_LACKING = {
    "a GPU": re.compile(r"\bGPUs?\b|\bNCCL\b"),
    "bubblewrap": re.compile(r"\bbwrap\b|bubblewrap"),
    "namespaces": re.compile(r"namespaces"),
    "a C compiler": re.compile(r"C compiler"),
    r"the environment \1": re.compile(r"no environment (\w+) over"),
    "a package index": re.compile(r"package index"),
    "agentrl[dense]": re.compile(r"agentrl\[dense\]"),
    r"the package \1": re.compile(r"could not import '([\w.]+)'"),
}
#: Set where no files are named, and all of the house is played.
_WHOLE = "AGENTRL_TESTS_WHOLE"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where the whole house is played, files that start the real stack or several ranks take turns,
    and so do those of the fault lab; of a slow test with many cases a day plays some. Long files
    come first. Then come files of few tests, which start the real stack: if one of them were left
    for the end, one process would play it while the other has nothing to do."""
    if os.environ.get(_WHOLE):
        in_turn = sorted({str(item.path) for item in items if _takes_turns(item)})
        left_out = set(in_turn) - set(of_the_day(in_turn, -(-len(in_turn) // _TURNS)))
        left_out |= set(cases_of_other_days(items))
        played = [i for i in items if left_out.isdisjoint((str(i.path), i.nodeid))]
        kept = set(of_the_part(sorted({piece_of(item.nodeid) for item in played})))
        played = [item for item in played if piece_of(item.nodeid) in kept]
        config.hook.pytest_deselected(items=[*set(items).difference(played)])
        items[:] = played
    tests = Counter(item.path for item in items)
    items.sort(key=lambda item: (item.path.name not in _LONG, tests[item.path]))


def piece_of(nodeid: str) -> str:
    """What a part of a session has whole, and one process plays: a file, or a case of one that
    takes an hour."""
    file = nodeid.partition("::")[0]
    return nodeid if file.endswith(_BY_CASE) else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadFileScheduling | None:
    """Of the processes of a session each has whole files, or cases of the longest."""
    if config.getvalue("dist") != "loadfile":
        return None
    scheduler = LoadFileScheduling(config, log)
    scheduler._split_scope = piece_of
    return scheduler


def _takes_turns(item: pytest.Item) -> bool:
    is_long = item.get_closest_marker("real") or "run_ranks" in getattr(item, "fixturenames", ())
    is_long = is_long or item.path.parent.name == "faults"
    return bool(is_long) and item.path.name not in _DAILY


def cases_of_other_days(items: Iterable[pytest.Item]) -> Iterator[str]:
    """Of the cases of slow tests, those that other days play."""
    cases: defaultdict[str, list[str]] = defaultdict(list)
    for item in items:
        if item.path.parent.name in _SLOW_FOLDERS or item.get_closest_marker("slow"):
            cases[item.nodeid.partition("[")[0]].append(item.nodeid)
    for ids in cases.values():
        yield from set(ids).difference(of_the_day(sorted(ids), _CASES))


def lacking(reasons: Iterable[str]) -> str:
    """One line that says what tests were not played for want of; empty if there is none."""
    found = Counter(
        match.expand(name)
        for reason in reasons
        for name, pattern in _LACKING.items()
        if (match := pattern.search(reason))
    )
    parts = [f"{name} ({number})" for name, number in sorted(found.items())]
    return f"not played for want of: {', '.join(parts)}" if parts else ""


class TellsTests:
    """Names each failure when it happens, so that a session that is ended early has told it; and at
    the end what this machine lacks."""

    def __init__(self, reporter: TerminalReporter):
        self._reporter = reporter

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            lines = (crash.message if crash else report.longreprtext).splitlines()[:5]
            self._reporter.ensure_newline()
            self._reporter.write_line(f"{report.when} of {report.nodeid} failed:", red=True)
            self._reporter.write_line("\n".join(f"    {line[:300]}" for line in lines))

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self) -> None:
        skipped = self._reporter.stats.get("skipped", [])
        if line := lacking(report.longrepr[2] for report in skipped):
            self._reporter.write_line(line)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Only the process that writes the report tells, the others send it what failed; and it alone
    knows whether files were named."""
    if hasattr(config, "workerinput"):
        return
    os.environ[_WHOLE] = "" if config.args_source is config.ArgsSource.ARGS else "1"
    if (reporter := config.pluginmanager.get_plugin("terminalreporter")) is not None:
        config.pluginmanager.register(TellsTests(reporter), "tells-tests")


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, object, object]:
    """A process of pytest-xdist ends without a word when what a test logged is not valid UTF-8."""
    return as_utf8((yield))


def as_utf8(data: object) -> object:
    """`data` with every text in it valid UTF-8."""
    if isinstance(data, str):
        return data.encode("utf-8", "backslashreplace").decode()
    if isinstance(data, dict):
        return {as_utf8(key): as_utf8(value) for key, value in data.items()}
    return type(data)(map(as_utf8, data)) if isinstance(data, list | tuple) else data
