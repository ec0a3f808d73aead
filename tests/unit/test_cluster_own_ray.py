"""The environment that Ray gets: of a cluster of the run's own, and of the user's."""

import os
import stat
from pathlib import Path

import pytest
from ray._private import services

from agentrl.cli.doctor import examine
from agentrl.cluster import own_ray as own_ray_module
from agentrl.cluster.own_ray import join_ray, own_ray, patient_start

NICENESS = "RAY_worker_niceness"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without a word on Ray."""
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def give_token(home: Path, mode: int) -> Path:
    token = home / ".ray" / "auth_token"
    token.parent.mkdir(parents=True)
    token.write_text("the user's own")
    token.chmod(mode)
    return token


def test_the_runs_own_ray_has_a_private_token_and_the_users_stays_as_it_is(
    home: Path, tmp_path: Path
) -> None:
    users = give_token(home, 0o600)
    with own_ray(tmp_path / "run") as before:
        path = Path(os.environ["RAY_AUTH_TOKEN_PATH"])
        assert path.parent == tmp_path / "run"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert len(path.read_text()) == 64
        assert os.environ["RAY_AUTH_MODE"] == "token"
    assert users.read_text() == "the user's own"
    assert before["RAY_AUTH_TOKEN_PATH"] is None


def test_the_users_words_to_ray_come_back_when_the_runs_own_has_ended(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "theirs")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    environment = dict(os.environ)
    with own_ray(tmp_path / "run") as before:
        assert "RAY_AUTH_TOKEN" not in os.environ
        assert (before["RAY_AUTH_TOKEN"], before["RAY_AUTH_MODE"]) == ("theirs", "disabled")
    assert dict(os.environ) == environment


def test_the_runs_own_ray_is_no_nicer_than_other_programs_unless_the_user_says_so(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with own_ray(tmp_path / "run"):
        assert os.environ[NICENESS] == "0"
    monkeypatch.setenv(NICENESS, "5")
    with own_ray(tmp_path / "run"):
        assert os.environ[NICENESS] == "5"


def test_a_node_that_is_slow_to_register_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def get_node(address: str) -> dict[str, int]:
        asked.append(address)
        if len(asked) < 3:
            raise RuntimeError("not yet")
        return {"node": 1}

    monkeypatch.setattr(services, "get_node", get_node)
    with patient_start():
        assert services.get_node("here") == {"node": 1}
    assert services.get_node is get_node


def test_a_node_that_never_registers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def get_node() -> None:
        raise RuntimeError("not yet")

    monkeypatch.setattr(services, "get_node", get_node)
    with patient_start(limit_s=0.2), pytest.raises(RuntimeError, match="not yet"):
        services.get_node()


def test_every_cluster_of_one_program_has_the_same_token(home: Path, tmp_path: Path) -> None:
    """Ray keeps the first one that it reads."""
    tokens = set()
    for name in ("a", "b"):
        with own_ray(tmp_path / name):
            tokens.add(Path(os.environ["RAY_AUTH_TOKEN_PATH"]).read_text())
    assert len(tokens) == 1


@pytest.mark.parametrize(
    ("has_token", "wants_it", "mode"),
    [(True, True, "token"), (True, False, None), (False, True, None)],
)
def test_a_cluster_is_joined_with_the_users_token_if_they_have_one_and_it_wants_it(
    home: Path, monkeypatch: pytest.MonkeyPatch, has_token: bool, wants_it: bool, mode: str | None
) -> None:
    monkeypatch.setattr(own_ray_module, "_takes_us_without", lambda address: not wants_it)
    monkeypatch.setitem(os.environ, "RAY_AUTH_MODE", "x")
    del os.environ["RAY_AUTH_MODE"]  # the fixture restores it, whatever is set below
    if has_token:
        give_token(home, 0o600)
    join_ray("10.0.0.1:6379")
    assert os.environ.get("RAY_AUTH_MODE") == mode


@pytest.mark.parametrize(("mode", "is_good"), [(0o600, True), (0o400, True), (0o644, False)])
def test_the_doctor_names_a_token_that_others_can_read(
    home: Path, tmp_path: Path, mode: int, is_good: bool
) -> None:
    token = give_token(home, mode)
    finding = next(f for f in examine(tmp_path) if f.name == "ray token")
    assert finding.good is is_good
    assert is_good or finding.detail.endswith(f"chmod 600 {token}")


def test_the_doctor_misses_no_token(home: Path, tmp_path: Path) -> None:
    assert next(f for f in examine(tmp_path) if f.name == "ray token").good
