"""Whether the kernel has killed for want of memory, as each version of cgroups tells it."""

import os
from pathlib import Path

import pytest

from agentrl.cluster.oom_kills import OomKills

V1 = "36 31 0:32 {root} {mount} rw,relatime shared:9 - cgroup cgroup rw,memory"
V2 = "41 31 0:38 {root} {mount} rw,relatime - cgroup2 cgroup2 rw"


def told_by(tmp_path: Path, groups: str, mounts: list[str], counter: str) -> tuple[Path, Path]:
    """A /proc with process 7 in `groups`, and the file of its counter."""
    for name in ("7", "self"):
        (tmp_path / "proc" / name).mkdir(parents=True)
    (tmp_path / "proc" / "7" / "cgroup").write_text(groups)
    other = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755"
    cpu = "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu"
    (tmp_path / "proc" / "self" / "mountinfo").write_text("\n".join([other, cpu, *mounts]))
    file = tmp_path / counter
    file.parent.mkdir(parents=True)
    return tmp_path / "proc", file


@pytest.mark.parametrize(
    ("groups", "line", "root", "counter"),
    [
        ("0::/run/learner", V2, "/", "m/run/learner/memory.events"),
        ("0::/", V2, "/", "m/memory.events"),
        ("9:name=systemd:/a\n4:cpu,memory:/run\n0::/a", V1, "/", "m/run/memory.oom_control"),
        ("4:memory:/docker/ab/run", V1, "/docker/ab", "m/run/memory.oom_control"),
        ("0::/docker/ab", V2, "/docker/ab", "m/memory.events"),
    ],
)
def test_a_kill_in_the_cgroup_of_a_process_is_seen_since_it_began(
    tmp_path: Path, groups: str, line: str, root: str, counter: str
) -> None:
    mount = line.format(root=root, mount=tmp_path / "m")
    proc, file = told_by(tmp_path, groups, [mount], counter)
    file.write_text("oom 9\noom_kill 4\noom_group_kill 0\n")
    kills = OomKills(7, proc)
    assert not kills.have_risen()
    file.write_text("oom 11\noom_kill 4\noom_group_kill 0\n")  # it was out of memory, and got some
    assert not kills.have_risen()
    file.write_text("oom 11\noom_kill 5\noom_group_kill 0\n")
    assert kills.have_risen()
    assert not OomKills(7, proc).have_risen()


def test_a_mount_with_a_space_in_its_name_is_found(tmp_path: Path) -> None:
    mount = V2.format(root="/", mount=f"{tmp_path}/a\\040b")
    proc, file = told_by(tmp_path, "0::/", [mount], "a b/memory.events")
    file.write_text("oom_kill 0\n")
    kills = OomKills(7, proc)
    file.write_text("oom_kill 1\n")
    assert kills.have_risen()


@pytest.mark.parametrize("before", [None, "", "oom_kill", "oom_kill many", "under_oom 0"])
def test_where_nothing_was_counted_nothing_has_risen(tmp_path: Path, before: str | None) -> None:
    proc, file = told_by(
        tmp_path, "0::/", [V2.format(root="/", mount=tmp_path / "m")], "m/memory.events"
    )
    if before is not None:
        file.write_text(before)
    kills = OomKills(7, proc)
    file.write_text("oom_kill 3\n")
    assert not kills.have_risen()


def test_a_process_whose_cgroup_is_not_to_be_seen_has_no_counter(tmp_path: Path) -> None:
    mount = V2.format(root="/docker/ab", mount=tmp_path / "m")
    proc, _ = told_by(tmp_path, "0::/elsewhere", [mount], "m/memory.events")
    assert not OomKills(7, proc).have_risen()
    assert not OomKills(8, proc).have_risen()  # it has ended


def test_a_counter_that_is_gone_has_not_risen(tmp_path: Path) -> None:
    mount = V2.format(root="/", mount=tmp_path / "m")
    proc, file = told_by(tmp_path, "0::/", [mount], "m/memory.events")
    file.write_text("oom_kill 0\n")
    kills = OomKills(7, proc)
    file.unlink()
    assert not kills.have_risen()


def test_this_host_can_be_asked() -> None:
    assert not OomKills(os.getpid()).have_risen()
