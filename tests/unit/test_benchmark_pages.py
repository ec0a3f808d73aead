"""Pages of measurements are made of the numbers beside them, and these are what was promised."""

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import RESULTS, ROOT, distillation
from benchmarks.cluster import ROLES
from benchmarks.objectives import ARMS, ENDS, SHOWN
from benchmarks.pages import PAGES, section, write_sections
from scripts.pages import filled


def result(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def values(name: str) -> dict[str, float]:
    return {row["metric"]: row["value"] for row in result(name)["rows"]}


def test_pages_are_what_the_committed_numbers_make() -> None:
    made = distillation.page(result("distillation"))
    assert distillation.PAGE.read_text(encoding="utf-8") == made
    marks = {
        (name, page)
        for page in PAGES.glob("*.md")
        for name in re.findall(r"<!-- end of (\w+) -->", page.read_text(encoding="utf-8"))
        if (RESULTS / f"{name}.json").exists()
    }
    assert {"async_vs_sync", "push", "schedules", "survival"} <= {name for name, _ in marks}
    for name, page in marks:
        text, found = page.read_text(encoding="utf-8"), result(name)
        assert filled(text, {name: partial(section, found)}) == text


def row(metric: str, value: float, unit: str, against: str | None = None) -> dict[str, Any]:
    return {"metric": metric, "value": value, "unit": unit, "against": against}


def reported(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"name": "some", "machine": "m", "commit": "c", "command": "x", "rows": [*rows]}


def test_a_number_that_misses_its_bar_is_bold() -> None:
    bars = ("< 2", "<= 2.5", ">= 3", "> 2", "0", "2.5", "at most 2", None)
    made = "\n".join(section(reported(*(row("m", 2.5, "ms", bar) for bar in bars))))
    shown = re.findall(r"^\| m \| (\S+) ", made, re.MULTILINE)
    bold, plain = "**2.5**", "2.5"
    assert shown == [bold, plain, bold, plain, bold, plain, plain, plain]


def test_numbers_of_a_thing_stand_on_one_line() -> None:
    found = reported(row("a: x", 1, "s"), row("sum", 3, "s"), row("b: x", 2, "s", "< 2"))
    made = "\n".join(section(reported(*found["rows"], row("b: y", 0.5, "share"))))
    assert "| sum | 3 | s | |" in made
    assert "| | x, s | y, share |\n| --- | --- | --- |\n| a | 1 | - |\n| b | **2** | 0.5 |" in made


def test_a_report_writes_into_the_pages_that_have_a_place_for_it(tmp_path: Path) -> None:
    place = "By hand.\n\n<!-- {0} -->\n<!-- end of {0} -->\n"
    for name in ("some", "another"):
        (tmp_path / f"{name}.md").write_text(place.format(name))
    write_sections(reported(row("sum", 3, "s")), tmp_path)
    assert "By hand.\n\n<!-- some -->\n`x`, commit c, m\n" in (tmp_path / "some.md").read_text()
    assert (tmp_path / "another.md").read_text() == place.format("another")


def test_a_pupil_learns_what_its_teacher_knows_without_a_reward() -> None:
    found = values("distillation")
    gain = found["teacher, held out"] - found["before, held out"]
    assert found["after, held out"] - found["before, held out"] > 0.9 * gain > 0.3
    kl = [value for name, value in found.items() if name.startswith("train/opd_reverse_kl")]
    assert kl[-1] < 0.5 * kl[0]


def test_every_part_was_killed_and_nothing_was_lost() -> None:
    found = values("survival")
    killed = [name for name in found if name.endswith(": kills")]
    assert len(killed) == 8
    assert all(found[name] >= 5 for name in killed)
    assert all(found[name] == 0 for name in found if name.endswith(": hung"))
    assert found["groups lost"] == found["groups trained twice"] == 0
    assert found["contradictions in the ledger"] == found["exit code"] == 0


def test_nodes_of_every_role_were_lost_ten_times_and_nothing_was_lost() -> None:
    found = values("cluster")
    for role in ROLES:
        assert found[f"{role}: lost and back"] >= 10
        zeros = ("hung", "groups lost", "groups trained twice")
        assert {found[f"{role}: {name}"] for name in zeros} == {0}
        assert found[f"{role}: contradictions in the ledger"] == 0


def test_a_critic_and_a_teacher_teach() -> None:
    found = values("objectives")
    for arm in ARMS:
        assert found[f"{arm}: seeds"] >= 3
        assert found[f"{arm}: end_low"] > found[f"{arm}: before"] + 0.2
    kl = [found[f"opd: {SHOWN['opd']}, {end} {ENDS}"] for end in ("first", "last")]
    assert kl[1] < 0.5 * kl[0]


def test_with_a_slow_tool_asynchrony_is_twice_as_fast() -> None:
    assert values("async_vs_sync")["speedup"] >= 2.0


def test_the_readme_says_of_its_environment_what_was_measured() -> None:
    found = values("readme_env")
    first = [found[name] for name in found if name.endswith("reward, first 3")]
    last = [found[name] for name in found if name.endswith("reward, last 3")]
    assert len(first) == len(last) == 3
    assert max(first) < 0.1
    assert 0.4 <= min(last) <= max(last) <= 0.7
    assert max(found[name] for name in found if name.endswith("whole program")) < 65


def test_the_chooser_of_corrections_says_what_old_tokens_cost() -> None:
    found = values("staleness")
    gap, low, high = (found[f"naive_gap{end}"] for end in ("", "_low", "_high"))
    text = " ".join((ROOT / "docs" / "objectives.md").read_text(encoding="utf-8").split())
    assert f"tokens of age 8 cost one job {gap:.2f} ({low:.2f} to {high:.2f})" in " ".join(
        text.split()
    )
    for arm, said in {
        "truncate": "truncated at 2, did not hold it up ({:.2f} below fresh tokens)",
        "icepop": "nor did IcePop ({:.2f})",
        "negative": "`--trust-region negative` ({:.2f} below, within noise)",
        "sequence": "`--tis-level sequence` ({:.2f} below)",
        "dppo": "`--trust-region dppo` ({:.2f} below)",
    }.items():
        below = found[f"{arm}, lag 8: mean below on-policy"]
        assert said.format(below) in text
    arms = ("negative", "sequence", "dppo", "negative-sequence")
    at_16 = [found[f"{arm}, lag 16: mean below on-policy"] for arm in arms]
    said = (
        "At age 16 the first two lay {:.2f} and {:.2f} below, which is more than noise, and `dppo` "
        "{:.2f} (three seeds). Both of the first two together lay {:.2f} below, within noise"
    )
    assert said.format(*at_16) in text


def test_the_readme_counts_kills_and_speed_as_measured() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = values("survival")
    kills = sum(found[name] for name in found if name.endswith(": kills"))
    assert f"[{kills:.0f} kills, nothing lost" in text
    assert f"[{values('async_vs_sync')['speedup']:.1f} times as fast]" in text


def test_the_readme_says_what_the_default_job_learns_and_how_long_it_takes() -> None:
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    found = values("default_job")
    (said,) = re.findall(r"from 0\.(\d\d) to about 0\.(\d\d)", text)
    start, end = map(int, said)
    assert abs(found["end_async"] - end) < 1.5
    assert abs(found["end_async"] - found["gain_async"] - start) < 0.5
