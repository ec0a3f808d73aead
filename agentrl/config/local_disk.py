"""Whether a folder is on a disk that a ledger can be on: SQLite needs locks and an fsync that file
systems of a network do not keep."""

from pathlib import Path

from agentrl.config.run import RunConfig
from agentrl.errors import EnvironmentSetupError

__all__ = ["check_ledgers_disk", "refuse_network_file_system"]

#: File systems without the locks and the fsync that a ledger needs.
_NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "ceph", "glusterfs", "gpfs", "beegfs"}
    | {"afs", "9p", "orangefs", "wekafs", "fuse.glusterfs", "fuse.sshfs", "fuse.s3fs"}
    | {"fuse.gcsfuse", "fuse.juicefs"}
)


def check_ledgers_disk(config: RunConfig, mounts: str | None = None) -> None:
    """Refuse a run whose directory is on a network file system, as its ledger would when it opens;
    `mounts` as there."""
    run = Path(config.resume if config.is_continued else config.run_dir)
    refuse_network_file_system(run, mounts)


def refuse_network_file_system(path: Path, mounts: str | None = None) -> None:
    """Raise EnvironmentSetupError when `path` lies on a network file system.

    `mounts`: the text of /proc/mounts; read when None, and nothing is refused where it is absent.
    """
    if mounts is None:
        try:
            mounts = Path("/proc/mounts").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return
    target = path.resolve()
    best = ("", "")
    for line in mounts.splitlines():
        _, point, kind, *_ = line.split(" ")
        point = point.replace("\\040", " ")
        if target.is_relative_to(point) and len(point) >= len(best[0]):
            best = (point, kind)
    if best[1] in _NETWORK:
        raise EnvironmentSetupError(
            f"{target} lies on {best[0]}, a network file system ({best[1]}): a ledger needs a local"
            " disk, choose another --run-dir"
        )
