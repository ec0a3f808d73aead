"""keys: private files in a private directory, or a clear refusal."""

import stat
from pathlib import Path

import pytest

from agentrl.errors import ConfigError
from agentrl.wire.keys import load_keys, make_keys


def test_keys_are_private_and_come_back(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "keys"
    keys = make_keys(folder)

    assert load_keys(folder) == keys
    assert keys.server_secret != keys.client_secret
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


def test_two_runs_have_different_keys(tmp_path: Path) -> None:
    assert make_keys(tmp_path / "a") != make_keys(tmp_path / "b")


def test_the_repr_shows_no_secret(tmp_path: Path) -> None:
    keys = make_keys(tmp_path / "keys")
    assert keys.server_secret.hex() not in f"{keys} {keys!r}"
    assert str(keys.server_secret) not in f"{keys} {keys!r}"


def test_keys_are_not_overwritten(tmp_path: Path) -> None:
    keys = make_keys(tmp_path / "keys")
    with pytest.raises(ConfigError, match="exists"):
        make_keys(tmp_path / "keys")
    assert load_keys(tmp_path / "keys") == keys


def test_a_key_that_others_can_read_is_refused_with_the_remedy(tmp_path: Path) -> None:
    make_keys(tmp_path / "keys")
    (tmp_path / "keys" / "client.key").chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        load_keys(tmp_path / "keys")


def test_a_directory_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys").chmod(0o755)
    with pytest.raises(ConfigError, match="chmod 700"):
        make_keys(tmp_path / "keys")


@pytest.mark.parametrize("text", ["", "zz", "00ff", "00" * 33, "\xff"])
def test_a_damaged_key_is_refused(tmp_path: Path, text: str) -> None:
    make_keys(tmp_path / "keys")
    (tmp_path / "keys" / "server.key").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match="damaged"):
        load_keys(tmp_path / "keys")


def test_missing_keys_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no key at"):
        load_keys(tmp_path / "nowhere")
