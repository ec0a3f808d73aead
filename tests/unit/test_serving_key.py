"""The key of engines and router: a private file, a header, and nothing in a log."""

import logging
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.errors import ConfigError
from agentrl.serving.key import authorization, hide, make_key, read_key


@pytest.fixture
def key(tmp_path: Path) -> str:
    make_key(tmp_path / "engine.key")
    return str(read_key(str(tmp_path / "engine.key")))


@pytest.fixture
def records() -> Iterator[None]:
    """What makes log records is put back."""
    factory = logging.getLogRecordFactory()
    yield
    logging.setLogRecordFactory(factory)


def test_every_run_has_a_key_of_its_own_in_a_private_file(tmp_path: Path, key: str) -> None:
    make_key(tmp_path / "another.key")
    assert read_key(str(tmp_path / "another.key")) != key
    assert stat.S_IMODE((tmp_path / "engine.key").stat().st_mode) == 0o600
    assert authorization(key) == {"Authorization": f"Bearer {key}"}


def test_without_a_file_there_is_no_key_and_no_header() -> None:
    assert read_key(None) is None
    assert authorization(None) == {}


def test_a_key_that_others_can_read_is_refused(tmp_path: Path, key: str) -> None:
    (tmp_path / "engine.key").chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_key(str(tmp_path / "engine.key"))


def test_what_a_process_logs_shows_no_key(
    key: str, records: None, caplog: pytest.LogCaptureFixture
) -> None:
    hide(key)
    logger = logging.getLogger("sglang.any")
    logger.warning("server_args=%s", {"api_key": key})
    logger.warning("plain %d", 5)
    assert caplog.messages == ["server_args={'api_key': '[hidden]'}", "plain 5"]
