"""Telling a network file system by the table of mounts."""

from pathlib import Path

import pytest

from slateboard_server.storage.filesystem import network_filesystem

MOUNTS = r"""
22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
30 22 0:40 / /srv/shared rw,relatime shared:5 - nfs4 files:/export rw,vers=4.2
31 30 8:2 / /srv/shared/local rw - xfs /dev/sdb1 rw
32 22 0:41 / /mnt/with\040blank→ rw - cifs //files/share rw
33 22 0:42 / /srv/twice rw - nfs files:/a rw
34 33 8:3 / /srv/twice rw - ext4 /dev/sdc1 rw
broken
"""


@pytest.mark.parametrize(
    ("directory", "kind"),
    [
        ("/srv/shared", "nfs4"),
        ("/srv/shared/deep/data", "nfs4"),
        ("/srv/sharedbyname", None),
        ("/srv/shared/local/data", None),
        ("/mnt/with blank→/data", "cifs"),
        ("/srv/twice/data", None),
        ("/var/lib", None),
    ],
)
def test_the_innermost_and_latest_mount_decides(tmp_path: Path, directory: str, kind: str | None) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    assert network_filesystem(Path(directory), mounts) == kind


def test_where_nothing_tells_nothing_is_said(tmp_path: Path) -> None:
    assert network_filesystem(tmp_path, tmp_path / "missing") is None


def test_a_local_directory_is_no_network_file_system(tmp_path: Path) -> None:
    assert network_filesystem(tmp_path) is None
