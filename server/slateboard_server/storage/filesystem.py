"""What kind of file system a directory lies on, as far as the operating system says it cheaply."""

from __future__ import annotations

import re
from pathlib import Path

_ESCAPE = re.compile(r"\\([0-7]{3})")
_MOUNTS = Path("/proc/self/mountinfo")
_NETWORK = frozenset(
    ("9p", "afs", "beegfs", "ceph", "cifs", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs", "gfs2", "glusterfs", "lustre",
     "ncpfs", "nfs", "nfs4", "ocfs2", "smb3", "smbfs", "vboxsf", "virtiofs")
)  # fmt: skip


def network_filesystem(directory: Path, mounts: Path = _MOUNTS) -> str | None:
    """Return the type of the network file system a directory lies on; None where it does not, or nothing tells."""
    try:
        lines = mounts.read_text(errors="replace").splitlines()
        place = directory.resolve()
    except OSError:
        return None
    kind, depth = "", -1
    for line in lines:
        mounted, _, described = line.partition(" - ")
        fields = mounted.split(" ")
        if len(fields) < 5 or not described:
            continue
        # Octal escapes stand for blanks and the like; a point mounted over again comes later in the list.
        point = Path(_ESCAPE.sub(lambda found: chr(int(found[1], 8)), fields[4]))
        if place.is_relative_to(point) and len(point.parts) >= depth:
            kind, depth = described.split(" ", 1)[0], len(point.parts)
    return kind if kind in _NETWORK else None
