"""How a session of pytest runs: what is played first, and what is told at once."""

from collections import Counter
from collections.abc import Generator

import pytest
from _pytest.terminal import TerminalReporter


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files of few tests first: those start the real stack, and none of them is left for the end,
    when one process would play it while the other has nothing to do."""
    tests = Counter(item.path for item in items)
    items.sort(key=lambda item: tests[item.path])


class TellsFailures:
    """Names each failure when it happens, so that a session that is ended early has told it."""

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
def pytest_configure(config: pytest.Config) -> None:
    """Only the process that writes the report tells: the others send it what failed."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(TellsFailures(reporter), "tells-failures")


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
