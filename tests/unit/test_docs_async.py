"""The numbers of docs/async.md are what the code computes."""

import re
from pathlib import Path

import msgspec
import pytest

from agentrl.bounds import RESAMPLES
from agentrl.buffer.admission import Pacer
from agentrl.buffer.groups import REPEATS
from agentrl.buffer.rows import PacingRow
from agentrl.buffer.settings import BufferSettings
from agentrl.buffer.starvation import WINDOW
from agentrl.config.asynchrony import about_asynchrony
from agentrl.config.resolve import parse
from agentrl.config.run import RunConfig
from agentrl.lineage import Lineage
from agentrl.types import PermitStats, VersionRow

PAGE = Path(__file__).resolve().parents[2] / "docs" / "async.md"


def rows(header: str) -> list[list[str]]:
    """Cells of the table whose header line begins so."""
    (body,) = re.findall(
        rf"^\| {re.escape(header)} \|.*\n\|[ |-]+\|\n((?:\|.*\n)+)", PAGE.read_text(), re.MULTILINE
    )
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in body.splitlines()]


def settings(b: int, i: int, s: int, n: int) -> BufferSettings:
    return BufferSettings(
        address="ipc://none",
        rollout_batch_size=n,
        async_buffer_size=b,
        update_weights_interval=i,
        max_staleness=s,
    )


@pytest.mark.parametrize("row", rows("B | I | S | N | least C"))
def test_the_caps_of_the_table_are_those_of_the_rule(row: list[str]) -> None:
    b, i, s, n, least, start, bound = map(int, row)
    run = settings(b, i, s, n)
    assert run.charged_limit == bound
    assert Pacer(run, None).row.cap == start
    assert Pacer(run, PacingRow(cap=0.0)).cap == least
    assert Pacer(run, PacingRow(cap=1e9)).cap == bound


@pytest.mark.parametrize("row", rows("B | I | S | N | Q"))
def test_the_over_sampling_of_the_page_is_that_of_the_rules(row: list[str]) -> None:
    b, i, s, n, m, least, greatest = map(int, row)
    run = msgspec.structs.replace(settings(b, i, s, n), over_sampling_batch_size=m)
    assert Pacer(run, PacingRow(cap=0.0)).cap == least
    config = RunConfig(
        rollout_batch_size=n,
        async_buffer_size=b,
        update_weights_interval=i,
        max_staleness=s,
        over_sampling_batch_size=greatest,
    )
    assert not list(about_asynchrony(config))
    more = msgspec.structs.replace(config, over_sampling_batch_size=greatest + 1)
    assert f"= {greatest} groups" in "".join(about_asynchrony(more))


def test_the_page_says_of_starvation_what_is_looked_at() -> None:
    assert f"slowest tenth of the last {WINDOW} N" in " ".join(PAGE.read_text().split())
    assert f"is minted again, at most {['', 'once', 'twice'][REPEATS]}" in PAGE.read_text()
    assert RESAMPLES == 2


@pytest.mark.parametrize("row", rows("I | lease k"))
def test_the_ages_of_the_table_are_those_of_the_lineage(row: list[str]) -> None:
    i, lease, version, contains, age = map(int, row)
    lineage = lineage_of(interval=i, newest=version)
    assert lineage.rows[version].iteration == contains
    assert lineage.age(version, lease) == age


@pytest.mark.parametrize("row", rows("turn | version"))
def test_the_straggler_of_the_page_is_masked_as_told(row: list[str]) -> None:
    version, age, trained = int(row[1]), int(row[2]), row[3]
    assert lineage_of(interval=1, newest=10).age(version, 11) == age
    assert trained == ("yes" if age <= 4 else "no")


def lineage_of(interval: int, newest: int) -> Lineage:
    return Lineage(VersionRow(v, v - 1 if v else None, v * interval) for v in range(newest + 1))


@pytest.mark.parametrize("row", rows("C | e before"))
def test_the_pacing_of_the_page_is_that_of_the_rule(row: list[str]) -> None:
    cap, before, x = map(float, row[:3])
    waited, free = (float(cell.removesuffix("%")) / 100 for cell in row[3:5])
    pacer = Pacer(settings(4, 1, 4, 32), None)
    pacer.leased(1, 0.0, 0.0, 0, now=0.0)
    pacer.row = PacingRow(cap, before)
    pacer.permits(PermitStats(free_share=free, window_s=10.0))
    pacer.leased(2, x, waited * 10.0, int(row[5]), now=10.0)
    assert pacer.row.old_share == pytest.approx(float(row[6]), abs=5e-4)
    assert pacer.row.cap == pytest.approx(float(row[7]), abs=5e-3)


def test_the_defaults_of_the_page_are_those_of_the_flags() -> None:
    told = {flag.strip("`"): default for _, flag, default, _ in rows("letter | flag")}
    config = RunConfig()
    assert told["--async-buffer-size"] == str(config.async_buffer_size)
    assert told["--update-weights-interval"] == str(config.update_weights_interval)
    assert told["--rollout-batch-size"] == str(config.rollout_batch_size)
    assert told["--max-staleness"] == "B + I - 1"
    for b, i in ((0, 1), (4, 1), (4, 3)):
        run = RunConfig(async_buffer_size=b, update_weights_interval=i)
        assert run.staleness_bound == b + i - 1


def test_the_page_says_how_old_a_token_of_the_default_job_may_be() -> None:
    config = parse(["--async-buffer-size", "4"], "train_async").config
    b, i, n = config.async_buffer_size, config.update_weights_interval, config.rollout_batch_size
    said = " ".join(PAGE.read_text().split())
    assert f"has B = {b}, I = {i}, N = {n}, so S = {config.staleness_bound}:" in said
