"""docs/reference.md has every flag and every command; the flags of other programs that are taken
have their help in docs/reference-passed-on.md."""

import re

from agentrl.cli.main import made_parser
from agentrl.config import answers, peers
from agentrl.config.fields import own_fields
from agentrl.config.passthrough import FAMILIES, table
from agentrl.config.passthrough import spelled as family_flag
from scripts.reference import PAGE, PASSED_ON, page, passed_on

TEXT = PAGE.read_text()
TABLES = PASSED_ON.read_text()


def test_the_page_is_what_its_script_writes() -> None:
    assert page(TEXT) == TEXT, "run python -m scripts.reference"
    assert passed_on(TABLES) == TABLES, "run python -m scripts.reference"


def test_every_flag_stands_on_the_page() -> None:
    spelled = set(re.findall(r"`(--[\w-]+)`", TEXT + TABLES))
    for family in FAMILIES:
        for flag in table(family).flags:  # of several names the one of its setting
            name = family_flag(family, "--" + flag.key.replace("_", "-"))
            assert not spelled.isdisjoint({name, name.replace("--", "--no-", 1)}), name
    assert {field.flag for field in own_fields().values()} <= spelled
    assert answers.rows("peer").keys() <= spelled


def test_a_flag_that_is_passed_on_has_its_help_and_its_default() -> None:
    for row in (
        r"`--sglang-tokenizer-mode` \| .+ \| .+ \| `auto` \|",
        r"`--sglang-mem-fraction-static` \| .+ \| number \| `0.2` on cpu \|",
        r"`--router-assignment-mode` \| .+ \| .+ \| `min_load` \|",
        r"`--attention-dropout` \| .+ \| number \| `0.0` \|",
        r"`--tensor-model-parallel-size` \| .+ \| whole number \| `1` \|",
    ):
        assert len(re.findall(rf"^\| {row}$", TABLES, re.MULTILINE)) == 1, row


def test_every_own_flag_has_one_row_with_its_help() -> None:
    for field in own_fields().values():
        rows = re.findall(rf"^\| `{field.flag}` \| (.*)$", TEXT, re.MULTILINE)
        assert len(rows) == 1, field.flag
        assert field.help[:20] in rows[0].replace("`", ""), field.flag


def test_a_setting_of_another_trainer_stands_beside_the_flag_that_takes_its_place() -> None:
    own = {field.flag for field in own_fields().values()}
    for peer, settings in peers.settings().items():
        for name, setting in settings.items():
            if setting.flag in own:
                (row,) = re.findall(rf"^\| `{setting.flag}` \|.*$", TEXT, re.MULTILINE)
                assert f"`{name}`" in row, (peer, name)


def test_every_command_has_its_chapter() -> None:
    (named,) = [action.choices for action in made_parser()._actions if action.choices]
    for name in named:
        assert f"### agentrl {name}" in TEXT
