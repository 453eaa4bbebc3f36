"""Addresses → bytes of the files that are mapped there, by Linux's list of maps.

    0x7f8811025010, in a map of file 7 from its byte 4096 on  →  FILES + (7 << BITS) + 4096 + 0x10

Two maps of one file are the same memory, be they of NumPy, `mmap`, PyTorch or shared memory.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from struct import Struct

FILES = 1 << 63  # first number of files' bytes: no address is as large
BITS = 44  # of a byte's number in its file; the others are its file's
MAPS = "/proc/self/maps"

# struct procmap_query of linux/fs.h: its size, the query, and the answer.
_QUERY = Struct("=9Q4I2Q")
_PROCMAP_QUERY = (3 << 30) | (_QUERY.size << 16) | (ord("f") << 8) | 17  # of Linux 6.11 and newer
_SHARED = 8  # in the flags of a map: writes go to the file


@dataclass(frozen=True)
class FileMap:
    """Memory from `start` on that maps a file from `offset` on."""

    start: int
    offset: int
    file: tuple[int, ...]  # device and inode

    def number(self, address: int) -> int:
        """Return the number of a byte of the file; a collision of files only adds dependences."""
        file = hash(self.file) % (1 << 63 - BITS)
        return FILES + (file << BITS) + self.offset + address - self.start


def number_of(address: int) -> int:
    """Return the number of the byte of a file that is mapped there, or the address.

    Raises OSError where the system has no list of maps.
    """
    found = _map_at(address)
    return address if found is None else found.number(address)


def _map_at(address: int) -> FileMap | None:
    maps = os.open(MAPS, os.O_RDONLY)  # each time, since a forked child has other maps
    try:
        return _query_map(maps, address)
    except OSError as error:
        if error.errno == errno.ENOENT:
            return None
        return _read_map(maps, address)
    finally:
        os.close(maps)


def _query_map(maps: int, address: int) -> FileMap | None:
    """Query the kernel, which takes 6 µs; raise OSError where it is too old."""
    from fcntl import ioctl  # not on all systems

    query = _QUERY.pack(_QUERY.size, 0, address, *[0] * 12)
    _, _, _, start, _, flags, _, offset, inode, major, minor, *_ = _QUERY.unpack(
        ioctl(maps, _PROCMAP_QUERY, query)
    )
    return FileMap(start, offset, (major, minor, inode)) if flags & _SHARED and inode else None


def _read_map(maps: int, address: int) -> FileMap | None:
    """Search the text of all maps, which takes about 1 µs a line."""
    with open(maps, "rb", closefd=False) as lines:
        for line in lines:
            span, mode, offset, device, inode, *_ = line.split(None, 5)
            start, stop = (int(x, 16) for x in span.split(b"-"))
            if start <= address < stop:
                file = (*(int(x, 16) for x in device.split(b":")), int(inode))
                shared = mode.endswith(b"s") and file[-1]
                return FileMap(start, int(offset, 16), file) if shared else None
    return None
