"""logging: whose line it is, and no secret in it."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.telemetry.logging import setup_logging

SECRET = "hf_5f3c9e71b2"


@pytest.fixture(autouse=True)
def root_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    for handler in root.handlers:
        if handler not in handlers:
            handler.close()
    root.handlers[:], root.level = handlers, level


def test_a_line_names_level_process_logger_and_message(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("INFO", name="worker-3")
    logging.getLogger("agentrl.x").info("episode %s done", "g7/0#0")
    logging.getLogger("agentrl.x").debug("hidden")
    stderr = capsys.readouterr().err
    (line,) = stderr.splitlines()
    assert line.endswith(" INFO  worker-3 agentrl.x: episode g7/0#0 done")


def test_with_a_file_the_terminal_gets_only_warnings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "logs" / "driver.log"
    setup_logging("INFO", name="driver", path=path)
    logging.getLogger("a").info("quiet")
    logging.getLogger("a").warning("loud")
    assert [line.split(": ")[1] for line in path.read_text().splitlines()] == ["quiet", "loud"]
    stderr = capsys.readouterr().err
    assert "quiet" not in stderr
    assert "loud" in stderr


@pytest.mark.parametrize("name", ["HF_TOKEN", "openai_api_key", "MY_SECRETS", "DB_PASSWORD"])
def test_secrets_of_the_environment_are_hidden_even_in_tracebacks(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, SECRET)
    setup_logging("INFO")
    try:
        raise RuntimeError(f"401 for {SECRET}")
    except RuntimeError:
        logging.getLogger("a").exception("request with %s failed", SECRET)
    stderr = capsys.readouterr().err
    assert SECRET not in stderr
    assert stderr.count("[hidden]") >= 2


def test_of_two_secrets_the_longer_is_hidden_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("A_KEY", SECRET)
    monkeypatch.setenv("B_KEY", SECRET + "/tail")
    setup_logging("INFO")
    logging.getLogger("a").info("it is %s.", SECRET + "/tail")
    stderr = capsys.readouterr().err
    assert stderr.endswith("it is [hidden].\n")


def test_settings_that_only_sound_secret_leave_words_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    setup_logging("INFO")
    logging.getLogger("a").info("false alarm")
    stderr = capsys.readouterr().err
    assert "false alarm" in stderr


def test_setting_up_again_does_not_double_the_lines(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("INFO", name="a%s")
    setup_logging("INFO", name="a%s")
    logging.getLogger("x").info("once")
    stderr = capsys.readouterr().err
    assert stderr.count("a%s x: once") == 1


def test_control_characters_of_errors_are_shown_and_not_obeyed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "driver.log"
    setup_logging("INFO", name="driver", path=path)
    try:
        raise ValueError("\x1b]0;mine\x07 \x9b2J \u202egnp.exe\r\x00")
    except ValueError as error:
        logging.getLogger("a").exception("an Env raised %s", error)
    for text in (path.read_text(), capsys.readouterr().err):
        assert text.replace("\n", "").isprintable()
        assert text.count("␛]0;mine␇ <U+009B>2J <U+202E>gnp.exe␍␀") == 2
