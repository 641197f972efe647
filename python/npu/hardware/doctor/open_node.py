"""Opens a DRM device node and prints its driver's name and version, or the error, as JSON.

Run as a process of its own: a driver that hangs cannot hang the caller. Imports nothing of npu.
"""

import array
import errno
import fcntl
import json
import os
import struct
import sys

# DRM_IOCTL_VERSION of linux/drm.h: _IOWR('d', 0, struct drm_version) on 64-bit machines.
_DRM_IOCTL_VERSION = 0xC0406400
_NAME_BYTES = 64


def main(path: str) -> None:
    try:
        node = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        print(json.dumps({"error": errno.errorcode.get(error.errno or 0, str(error.errno))}))
        return
    name = array.array("B", bytes(_NAME_BYTES))
    # major, minor, patch, padding; length and address of name, date and description.
    words = struct.pack("iii4xQQQQQQ", 0, 0, 0, _NAME_BYTES, name.buffer_info()[0], 0, 0, 0, 0)
    version = bytearray(words)
    try:
        fcntl.ioctl(node, _DRM_IOCTL_VERSION, version)
    except OSError:
        print(json.dumps({"error": None}))
        return
    major, minor, patch, length = struct.unpack_from("iii4xQ", version)
    text = bytes(name[: min(length, _NAME_BYTES)]).decode(errors="replace")
    print(json.dumps({"error": None, "driver": text, "version": [major, minor, patch]}))


if __name__ == "__main__":
    main(sys.argv[1])
