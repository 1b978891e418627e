"""What hostile programs share. They run inside a sandbox, with its Python and nothing else, and print JSON."""

import ctypes
import errno
import json
import os
import platform
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

libc = ctypes.CDLL(None, use_errno=True)
ARM = platform.machine() == "aarch64"


def outcome(action: Callable[..., object], *arguments: object) -> str:
    """`ok`, or the name of the error."""
    try:
        action(*arguments)
    except socket.gaierror:
        return "unresolved"
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, type(error).__name__)
    return "ok"


def touch(path: str, flags: int) -> None:
    """Open a file and close it."""
    os.close(os.open(path, flags))


def syscall(number: int, *arguments: Any) -> int:
    """A system call as it is. Raises OSError."""
    libc.syscall.restype = ctypes.c_long
    result = int(libc.syscall(ctypes.c_long(number), *arguments))
    if result == -1:
        raise OSError(ctypes.get_errno(), "")
    return result


def in_child(action: Callable[..., object], *arguments: object) -> str:
    """The outcome in a process of its own, which an action may spoil; the signal's name if it is killed."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        os.write(writer, outcome(action, *arguments).encode())
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        said = pipe.read().decode()
    status = os.waitpid(child, 0)[1]
    return signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else said


def report(value: object) -> None:
    """Print the result."""
    json.dump(value, sys.stdout)
    sys.stdout.flush()
