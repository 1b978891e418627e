"""Run inside a sandbox: makes a tree of everything that a file system can hold, or tells what is in it."""

import hashlib
import json
import os
import socket
import stat
import struct
import sys
from pathlib import Path

HOME = Path("/home/user/tree")
# A POSIX ACL of version 2: owner rwx, user 1234 r-x, group r--, mask r-x, others nothing.
ACL = struct.pack("<I", 2) + b"".join(
    struct.pack("<HHI", *entry)
    for entry in (
        (1, 7, 0xFFFFFFFF),
        (2, 5, 1234),
        (4, 4, 0xFFFFFFFF),
        (16, 5, 0xFFFFFFFF),
        (32, 0, 0xFFFFFFFF),
    )
)


def make() -> None:
    """As the sandbox's root."""
    HOME.mkdir()
    os.chdir(HOME)
    Path("file").write_text("content")
    os.link("file", "hard")
    Path("dir").mkdir()
    os.link("file", "dir/hard")
    os.symlink("../../../etc/passwd", "out")
    os.symlink("/nowhere", "dangling")
    with open("sparse", "wb") as file:
        file.truncate(60 << 30)
        file.seek(30 << 30)
        file.write(b"middle")
    os.mkfifo("fifo")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind("socket")
    Path("suid").write_text("#!/bin/sh\n")
    os.chown("suid", 0, 1000)
    os.chmod("suid", 0o6755)
    Path("sticky").mkdir()
    os.chmod("sticky", 0o1777)
    Path("x" * 255).write_text("long name")
    (Path("é" * 127) / ("y" * 255)).mkdir(parents=True)
    Path(os.fsdecode(b"not \xff utf-8 \n")).write_text("odd")
    Path("attributed").write_text("a")
    os.setxattr("attributed", "user.note", b"\x00binary\xff")
    os.setxattr("attributed", "system.posix_acl_access", ACL)
    os.chown("dangling", 7, 65000, follow_symlinks=False)
    Path("/usr/bin/perl").unlink()  # of the template
    os.rename("/usr/share/doc", "/home/user/tree/moved")  # a directory of the template
    Path("/etc/skel/.bashrc").write_text("changed")
    os.utime("file", ns=(123456789, 987654321))


def tell() -> None:
    """Everything but device, inode and change time."""
    told: dict[str, object] = {
        "perl": os.path.exists("/usr/bin/perl"),
        "doc": os.path.exists("/usr/share/doc"),
        "skel": Path("/etc/skel/.bashrc").read_text(),
    }
    links: dict[int, list[str]] = {}
    for folder, folders, files in os.walk(HOME):
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            status = os.lstat(path)
            if status.st_nlink > 1 and stat.S_ISREG(status.st_mode):
                links.setdefault(status.st_ino, []).append(path)
            content = ""
            if stat.S_ISLNK(status.st_mode):
                content = os.readlink(path)
            elif stat.S_ISREG(status.st_mode) and status.st_size < 1 << 20:
                content = hashlib.sha256(Path(path).read_bytes()).hexdigest()
            attributes = (
                {}
                if stat.S_ISLNK(status.st_mode)
                else {key: os.getxattr(path, key).hex() for key in os.listxattr(path)}
            )
            told[ascii(path)] = [
                oct(status.st_mode), status.st_uid, status.st_gid,
                status.st_size if not stat.S_ISDIR(status.st_mode) else 0,
                status.st_mtime_ns, status.st_nlink if not stat.S_ISDIR(status.st_mode) else 0,
                content, sorted(attributes.items()),
            ]  # fmt: skip
    told["links"] = sorted([ascii(name) for name in sorted(names)] for names in links.values())
    sparse = os.stat(HOME / "sparse")
    told["sparse stays sparse"] = sparse.st_blocks * 512 < 1 << 20
    print(json.dumps(told, sort_keys=True, indent=1))


if __name__ == "__main__":
    {"make": make, "tell": tell}[sys.argv[1]]()
