"""Every name of Megatron is honoured, or refused with a reason: there is no third state."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from agentrl.config import answers
from agentrl.config.command_line import known_flags, read_flags
from agentrl.config.fields import own_fields
from agentrl.config.megatron import MegatronSettings, about_settings, flag
from agentrl.config.megatron_refused import why_refused
from agentrl.config.passthrough import table

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
REFUSED = ROOT / "agentrl" / "config" / "tables" / "megatron_refused.toml"
FLAGS = {each.key: each for each in table("megatron").flags}
VALUES: dict[str, Any] = {"bool": True, "int": 1, "float": 1.0, "str": "1", "strs": ["1"]}


def states(name: str) -> list[str]:
    """All answers that there are to a name."""
    rows = {**answers.rows("megatron"), **answers.rows("slime")}
    found = []
    if name in MegatronSettings.__struct_fields__ or name in own_fields():
        found.append("honoured")
    elif row := rows.get(flag(name)):
        found.append("works" if row.state == "works" else "answered")
        assert row.says or row.waits, name
    if why_refused(name):
        found.append("refused")
    return found


@pytest.mark.parametrize("name", FLAGS)
def test_a_name_of_megatron_has_one_answer(name: str) -> None:
    assert states(name) in (["honoured"], ["answered"], ["refused"])


@pytest.mark.parametrize("name", [name for name in FLAGS if why_refused(name)])
def test_a_refused_name_is_refused_on_the_command_line_with_its_reason(name: str) -> None:
    each = FLAGS[name]
    value = each.choices[0] if each.choices else VALUES[each.kind]
    words = [] if value is True else [str(v) for v in (value if each.kind == "strs" else [value])]
    read = read_flags([flag(each.key), *words]).values["megatron"]
    (line,) = about_settings(read)
    assert line == f"{flag(each.key)} is not supported: {why_refused(each.key)}"


def test_only_names_of_megatron_are_refused_and_none_twice() -> None:
    groups = tomllib.loads(REFUSED.read_text())["refused"]
    names = [name for group in groups for name in group["flags"].split()]
    assert sorted(names) == sorted({*names} & FLAGS.keys())


def test_every_flag_that_slimes_scripts_pass_has_an_answer() -> None:
    record = json.loads((ROOT / "tests" / "fixtures" / "slime_scripts.json").read_text())
    passed = {
        word.partition("=")[0]
        for script in record["scripts"]
        for word in script["argv"]
        if word.startswith("--")
    }
    known = {*known_flags(), *answers.rows()}
    known |= {name.replace("--", "--no-", 1) for name in known}
    assert {name for name in passed if not name.startswith("--sglang-")} - known == set()
