"""Which folders lie on a network file system. The mounts are written down here; only the last test asks the kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.files import network_file_system

MOUNTS = r"""22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
30 22 0:24 / /data rw,relatime - nfs4 server:/export rw,vers=4.2
31 30 0:25 / /data/local rw - xfs /dev/vdb rw
32 22 0:26 / /with\040space rw shared:3 master:1 - cifs //server/share rw
33 22 0:27 / /home/me/far rw - fuse.sshfs me@there: rw
34 22 0:28 / /twice rw - nfs server:/a rw
35 34 0:29 / /twice rw - tmpfs tmpfs rw
36 22 0:30 / /again rw - tmpfs tmpfs rw
37 36 0:31 / /again rw - nfs server:/a rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", None),
        ("/srv/gateway-data", None),
        ("/data", "nfs4"),
        ("/data/gateway", "nfs4"),
        ("/database", None),  # begins alike, and lies elsewhere
        ("/data/local/gateway", None),
        ("/with space/gateway", "cifs"),
        ("/home/me/far/away/and/not/made/yet", "sshfs"),
        ("/twice/x", None),
        ("/again/x", "nfs"),
    ],
)
def test_the_deepest_mount_decides(tmp_path: Path, path: str, kind: str | None) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    assert network_file_system(Path(path), mounts) == kind


def test_a_link_is_followed(tmp_path: Path) -> None:
    mounts, link = tmp_path / "mountinfo", tmp_path / "link"
    mounts.write_text(MOUNTS)
    link.symlink_to("/data/gateway")
    assert network_file_system(link, mounts) == "nfs4"


def test_unknown_file_systems_are_accepted(tmp_path: Path) -> None:
    assert network_file_system(tmp_path, tmp_path / "no such file") is None


def test_this_machine_can_run_the_tests(tmp_path: Path) -> None:
    assert network_file_system(tmp_path) is None
