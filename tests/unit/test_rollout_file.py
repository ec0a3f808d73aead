"""Files of saved rollouts: what is written is read again, and nothing else is taken for one."""

import pickle
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl.config.rollouts import about_rollouts, loaded_files
from agentrl.config.run import RunConfig
from agentrl.errors import DataError
from agentrl.numbered import numbered
from agentrl.rollout_file import (
    Rollouts,
    read_columns,
    read_rollouts,
    write_rollouts,
)
from agentrl.types import EpisodeId, VersionRow
from agentrl.wire.messages import Lease
from tests.integration.learner_world import World, learn


def saved(folder: Path, num_iterations: int = 1) -> list[Path]:
    """Files of a run on the toy learner."""
    template = f"{folder}/it-{{rollout_id}}"
    learn(World([2] * num_iterations), save_debug_rollout_data=template)
    return [numbered(template, number + 1) for number in range(num_iterations)]


def read_whole(path: Path) -> list[bytes]:
    """Every trajectory of a file."""
    found = read_rollouts(path)
    with path.open("rb") as opened:
        rows = [row for group in found.lease.groups for row in group.trajectories]
        return [read_columns(opened, row) for row in rows]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("rollouts"))[0]


def test_what_is_saved_is_read_again(tmp_path: Path) -> None:
    world = World([2, 1])
    learn(world, save_debug_rollout_data=f"{tmp_path}/{{rollout_id}}")
    assert {path.name for path in tmp_path.iterdir()} == {"1", "2"}
    found = read_rollouts(tmp_path / "2")
    lease = world.lease(2)
    assert isinstance(lease, Lease)
    recipe = found.versions[0].recipe
    assert found.versions == [VersionRow(0, None, 0, recipe), VersionRow(1, 0, 1, recipe)]
    wanted = lease.header.groups
    for group, own in zip(found.lease.groups, wanted, strict=True):
        assert msgspec.structs.replace(group, trajectories=[]) == msgspec.structs.replace(
            own, trajectories=[]
        )
    played = [row.payload.offset for group in wanted for row in group.trajectories]
    assert read_whole(tmp_path / "2") == [b"".join(world._payloads[at][1]) for at in played]


def test_details_are_saved_beside_what_is_saved(tmp_path: Path) -> None:
    details, own = tmp_path / "details", tmp_path / "mine"
    learn(World([1]), dump_details=str(details), save_debug_rollout_data=str(own))
    assert (details / "rollout_data" / "1.rollouts").read_bytes() == own.read_bytes()


def test_a_lease_with_a_damaged_payload_is_told_and_not_saved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World([2, 2])
    world.damaged = {"2-1/0#0"}
    learn(world, save_debug_rollout_data=f"{tmp_path}/{{rollout_id}}")
    assert [path.name for path in tmp_path.iterdir()] == ["1"]
    assert "the rollouts of iteration 2 are not saved" in caplog.text


@given(at=st.integers(0, 10**6), flip=st.integers(1, 255))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_one_changed_byte_is_found(file: Path, at: int, flip: int) -> None:
    data = bytearray(file.read_bytes())
    data[at % len(data)] ^= flip
    changed = file.with_name("changed")
    changed.write_bytes(data)
    with pytest.raises(DataError, match="changed"):
        read_whole(changed)


@given(length=st.integers(0, 10**6))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_that_is_cut_short_is_refused(file: Path, length: int) -> None:
    data = file.read_bytes()
    short = file.with_name("short")
    short.write_bytes(data[: length % len(data)])
    with pytest.raises(DataError, match=r"cut short|no file of rollouts"):
        read_rollouts(short)


@pytest.mark.parametrize("begin", [b"PK\x03\x04 of torch", pickle.dumps({"samples": []})])
def test_a_pickle_is_refused_by_its_name_and_not_read(tmp_path: Path, begin: bytes) -> None:
    path = tmp_path / "0.pt"
    path.write_bytes(begin)
    with pytest.raises(DataError, match=r"0\.pt is a pickle.*as slime saves rollouts"):
        read_rollouts(path)


def test_what_cannot_be_loaded_is_told_before_anything_starts(tmp_path: Path) -> None:
    saved(tmp_path, 2)
    template = f"{tmp_path}/it-{{rollout_id}}"
    config = RunConfig(load_debug_rollout_data=template)
    assert [path.name for path in loaded_files(config)] == ["it-1", "it-2"]
    assert [*about_rollouts(config)] == []
    (missing,) = about_rollouts(msgspec.structs.replace(config, num_rollout=4))
    assert f"there is no file {tmp_path}/it-3, nor 1 others" in missing
    (tmp_path / "it-2").write_bytes(b"\x80\x04.")
    (refused,) = about_rollouts(config)
    assert "--load-debug-rollout-data: " in refused
    assert "is a pickle" in refused
    for path in (tmp_path, tmp_path / "nothing"):
        (refused,) = about_rollouts(RunConfig(load_debug_rollout_data=str(path)))
        assert str(path) in refused


def test_one_file_is_trained_in_each_iteration(tmp_path: Path) -> None:
    config = RunConfig(load_debug_rollout_data=str(tmp_path / "it"), num_rollout=3)
    assert loaded_files(config) == [tmp_path / "it"] * 3


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"save_debug_rollout_data": "/tmp/a"}, "replace the file of the one before"),
        ({"debug_rollout_only": True, "load_debug_rollout_data": "FILE"}, "give one of the two"),
        ({"colocate": True, "debug_rollout_only": True}, "--colocate: under --debug-rollout-only"),
        ({"colocate": True, "load_debug_rollout_data": "FILE"}, "--colocate: under --load-debug"),
        (
            {"save_debug_rollout_data": "FILE", "load_debug_rollout_data": "FILE"},
            "would replace the files",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(
    file: Path, flags: dict[str, object], said: str
) -> None:
    given_ = {name: str(file) if value == "FILE" else value for name, value in flags.items()}
    config = msgspec.convert(given_, RunConfig)
    assert any(said in line for line in about_rollouts(config))


@pytest.mark.parametrize("wrong", ["another group", "no rewards", "other bytes"])
def test_a_header_that_contradicts_itself_is_refused(
    file: Path, tmp_path: Path, wrong: str
) -> None:
    found = read_rollouts(file)
    group = found.lease.groups[0]
    changes: dict[str, dict[str, object]] = {
        "another group": {"episodes": [EpisodeId("other", 0)] * len(group.episodes)},
        "no rewards": {"rewards": []},
        "other bytes": {},
    }
    group = msgspec.structs.replace(group, **changes[wrong])
    lease = msgspec.structs.replace(found.lease, groups=[group])
    parts = [b"12"] if wrong == "other bytes" else [bytes(8)]
    path = tmp_path / "wrong"
    rollouts = Rollouts(lease, found.versions)
    write_rollouts(path, rollouts, lambda group: [parts for _ in group.trajectories])
    with pytest.raises(DataError, match="wrong: "):
        read_rollouts(path)


def test_a_place_that_str_format_cannot_use_is_refused(tmp_path: Path) -> None:
    place = f"{tmp_path}/{{number}}.rollouts"
    for flag, config in (
        ("--save-debug-rollout-data", RunConfig(save_debug_rollout_data=place)),
        ("--load-debug-rollout-data", RunConfig(load_debug_rollout_data=place)),
    ):
        (line,) = about_rollouts(config)
        assert line.startswith(f"{flag} {place}: ")
        assert "{number} is unknown" in line


def test_a_folder_with_braces_is_dumped_into_as_it_is_called(tmp_path: Path) -> None:
    learn(World([2]), dump_details=f"{tmp_path}/{{x}}")
    assert (tmp_path / "{x}" / "rollout_data" / "1.rollouts").is_file()
