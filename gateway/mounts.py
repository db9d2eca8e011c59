"""Which folders lie on a network file system, where locks and fsync do not mean what they say.

Known on Linux only, which tells every mount in /proc/self/mountinfo (man 5 proc_pid_mountinfo).
"""

from __future__ import annotations

import os
import re
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")

NETWORK_TYPES = frozenset({
    "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "glusterfs", "gfs2", "gpfs", "lustre", "ncpfs", "nfs", "nfs4",
    "ocfs2", "pvfs2", "s3fs", "smb3", "smbfs", "sshfs",
})  # fmt: skip
"""9p is not among them: it is how some sandboxes and virtual machines show a disk of their own host."""

_ESCAPE = re.compile(r"\\([0-7]{3})")


def network_file_system(path: Path, mounts: Path = MOUNTS) -> str | None:
    """The type of the network file system that a path lies on or would lie on, such as `nfs4`; None where it is a
    local one, or where nobody can tell."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    real = os.path.realpath(path)
    found, depth = "", -1
    for line in lines:
        place, kind = _mount(line)
        # Of two mounts on one place, the later one hides the other.
        if len(place) >= depth and (place == real or real.startswith(place.rstrip("/") + "/")):
            found, depth = kind, len(place)
    kind = found.removeprefix("fuse.")
    return kind if kind in NETWORK_TYPES else None


def _mount(line: str) -> tuple[str, str]:
    """Where a file system is mounted, and its type."""
    fields, _, rest = line.partition(" - ")
    return _ESCAPE.sub(lambda found: chr(int(found[1], 8)), fields.split(" ")[4]), rest.split(" ")[0]
