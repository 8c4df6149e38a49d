"""P17: a full disk is a typed 507; reads go on, nothing acknowledged is lost, and with room again it goes on."""

import json
import os
import resource
import shutil
import subprocess
from pathlib import Path

import pytest
from promises.federation import SECRET, Process, answer, draws, restored
from promises.table import FULL, needs

from artesian.server.messages import decode_task

pytestmark = pytest.mark.heavy


class Filling:
    """One client at a server whose disk is now and then full."""

    def __init__(self, server: Process) -> None:
        self.server, self.task, self.full = server, server.join("c0"), 0
        self.acknowledged: list[int] = []

    def upload(self) -> int:
        number = decode_task(self.task).number
        status, told = self.server.request("PUT", f"/v1/clients/c0/uploads/{number}", SECRET, answer("c0", self.task))
        if status == 200:
            self.acknowledged.append(number)
            self.task = told
            return status
        assert status == 507, (status, told)
        assert json.loads(told)["error"] == "StorageError"
        self.full += 1
        return status

    def reads(self) -> None:
        assert self.server.request("GET", "/v1/clients/c0/task", SECRET) == (200, self.task)
        assert self.server.request("GET", "/healthz")[0] == 200

    def lives_through(self, fill, free) -> None:
        """Uploads until the disk says no, then reads, then with room again an upload that is taken."""
        fill()
        try:
            for _ in range(3):
                if self.upload() == 507:
                    self.reads()
                    break
        finally:
            free()
        assert self.upload() == 200, "room on the disk is all it takes"

    def check(self, folder: Path) -> None:
        self.server.stop()
        _, journal = restored(folder)
        assert sorted(measured.upload.number for measured in journal) == self.acknowledged


def test_files_that_may_not_grow(tmp_path, promise, figure) -> None:
    """A limit on the size of files, set from outside while the server runs, is a disk that is full for some of them."""
    points, rng = promise("limits"), draws("limits")
    server = Process(tmp_path, "--set", "keep_uploads=true", "--set", "log=off")
    filling = Filling(server)
    for _ in range(points):
        most = rng.choice([0, 100, 250, 300, 4096, 8192, 30_000, 100_000, 200_000])
        filling.lives_through(
            lambda most=most: resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY)),
            lambda: resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2),
        )
    assert filling.full
    filling.check(tmp_path / "store")
    figure(f"{filling.full} uploads answered 507")


@pytest.mark.skipif(not FULL, reason="in full counts only: not every machine may mount")
def test_a_small_disk_filled_to_any_point(tmp_path, promise, figure) -> None:
    points, rng = promise("disk"), draws("disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = (
        os.geteuid() == 0
        and shutil.which("mount")
        and not subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(disk)], capture_output=True
        ).returncode
    )
    needs(mounted, "a small file system cannot be mounted")
    try:
        server = Process(disk, "--set", "keep_uploads=true", "--set", "log=off")
        filling = Filling(server)
        ballast = disk / "ballast"

        def fill() -> None:
            room = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
            left = rng.choice([0, 4096, 8192, 12_288, 16_384, 20_480, 40_960, 65_536])
            with open(ballast, "wb") as file:
                os.posix_fallocate(file.fileno(), 0, max(1, room - left))

        for _ in range(points):
            filling.lives_through(fill, ballast.unlink)
        assert filling.full
        filling.check(disk / "store")
        figure(f"{filling.full} uploads answered 507")
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
