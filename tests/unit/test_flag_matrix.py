"""What every flag does in every mode stays as it is written down, text for text."""

import pytest

from agentrl.config.run import RunConfig
from tests.unit.flag_matrix import FILE, lines

pytestmark = pytest.mark.slow


def test_every_flag_does_in_every_mode_what_is_written_down() -> None:
    assert list(lines()) == FILE.read_text().splitlines(), (
        "`python -m tests.unit.flag_matrix` prints what changed; each such line is one of the "
        "CHANGELOG, and `--write` takes them over"
    )


def test_the_table_has_every_flag() -> None:
    flags = {line.split("\t")[0].split()[0] for line in FILE.read_text().splitlines()}
    names = {flag.removeprefix("--").replace("-", "_") for flag in flags}
    assert set(RunConfig.__struct_fields__) - {"megatron", "sglang", "router"} <= names
