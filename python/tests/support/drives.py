# SPDX-License-Identifier: Apache-2.0
"""
A drive that fails when it is told to: an ext4 on a loop device, whose image lies on a file system of its own
so that all I/O can be stopped there. As root.
"""

import contextlib
import fcntl
import os
import struct
import subprocess
import time

LOOP_SET_STATUS64, LOOP_GET_STATUS64, LOOP_INFO64_BYTES = 0x4C04, 0x4C05, 232
SIZE_LIMIT = slice(32, 40)
FIFREEZE, FITHAW = 0xC0045877, 0xC0045878
MIB = 1 << 20


def _run(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def _image(path, nbytes, *options):
    with open(path, "wb") as file:
        file.truncate(nbytes)
    _run("mkfs.ext4", "-q", "-m", "0", *options, path)


def _unmount(folder):
    """The kernel may close the files of a process after its end."""
    while subprocess.run(["umount", folder], check=False, stderr=subprocess.DEVNULL).returncode:
        if not os.path.ismount(folder):
            return
        time.sleep(0.01)


class Drive:
    """Mounted at `path`, below files in `folder`; with `fuse` by bindfs over it."""

    def __init__(self, path, folder, nbytes, fuse):
        self.path = path
        self._outer, self._inner = (os.path.join(folder, name) for name in ("outer", "inner"))
        self._fuse, self._bindfs, self._fails = fuse, None, False
        for each in (path, self._outer, self._inner):
            os.makedirs(each)
        _image(os.path.join(folder, "image"), nbytes + 32 * MIB, "-O", "^has_journal")
        _run("mount", "-o", "loop", os.path.join(folder, "image"), self._outer)
        _image(os.path.join(self._outer, "image"), nbytes)
        self._device = _run("losetup", "--find", "--show", "--direct-io=on", os.path.join(self._outer, "image"))
        self._mount()

    def _mount(self):
        _run("mount", self._device, self._inner if self._fuse else self.path)
        if self._fuse:
            self._bindfs = subprocess.Popen(["bindfs", "-f", self._inner, self.path])
            while not os.path.ismount(self.path):
                assert self._bindfs.poll() is None
                time.sleep(0.01)

    def _unmount(self):
        _unmount(self.path)
        if self._bindfs:
            self._bindfs.wait()
        _unmount(self._inner)

    def fill(self):
        """Takes all room that is free."""
        with open(os.path.join(self._inner if self._fuse else self.path, "filler"), "ab") as file:
            for nbytes in (MIB, 4096):
                with contextlib.suppress(OSError):
                    while True:
                        os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, nbytes)

    def fail_from(self, offset):
        """I/O behind this offset is an I/O error; with 0, none is."""
        self._fails = offset > 0
        with open(self._device, "rb") as device:
            info = bytearray(fcntl.ioctl(device, LOOP_GET_STATUS64, bytes(LOOP_INFO64_BYTES)))
            info[SIZE_LIMIT] = struct.pack("<Q", offset)
            fcntl.ioctl(device, LOOP_SET_STATUS64, bytes(info))

    @contextlib.contextmanager
    def stopped(self):
        """Writes wait, and reads behind them."""
        outer = os.open(self._outer, os.O_RDONLY)
        try:
            fcntl.ioctl(outer, FIFREEZE, 0)
            try:
                yield
            finally:
                fcntl.ioctl(outer, FITHAW, 0)
        finally:
            os.close(outer)

    def mend(self):
        """As after a repair: all room, no errors, and the file system mounted anew."""
        if self._fails:
            self.fail_from(0)
        self._unmount()
        self._mount()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self.path, "filler"))

    def remove(self):
        self._unmount()
        _run("losetup", "--detach", self._device)
        _unmount(self._outer)
