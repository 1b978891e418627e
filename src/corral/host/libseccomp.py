"""System call filters as the kernel takes them, made by libseccomp, which every runtime uses too.

A runtime compiles its profile at each start, which takes some milliseconds. Here it is done once.
"""

import ctypes
import os
import tempfile
from collections.abc import Mapping
from typing import Any

from corral.errors import HostError, Unsupported

_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000
_COMPARISONS = {"SCMP_CMP_EQ": 4, "SCMP_CMP_MASKED_EQ": 7}
_OPTIMIZE = 8
_TREE = 2
_UNKNOWN_CALL = -1


class _Comparison(ctypes.Structure):
    _fields_ = (
        ("arg", ctypes.c_uint),
        ("op", ctypes.c_int),
        ("a", ctypes.c_uint64),
        ("b", ctypes.c_uint64),
    )


def compile_filter(profile: Mapping[str, Any]) -> bytes:
    """The instructions of an OCI seccomp profile for this machine's own architecture: calls of any other kill the caller.

    Calls that this kernel's libseccomp does not know stay refused by default. Raises Unsupported where there is no
    libseccomp, HostError where it refuses the profile.
    """
    library = _library()
    context = library.seccomp_init(_ERRNO | int(profile["defaultErrnoRet"]))
    if not context:
        raise HostError("libseccomp could not make a filter")
    try:
        # As a tree, the filter finds a call in eight comparisons instead of three hundred; older libraries cannot.
        library.seccomp_attr_set(context, _OPTIMIZE, _TREE)
        for rule in profile["syscalls"]:
            _add(library, context, rule)
        return _export(library, context)
    finally:
        library.seccomp_release(context)


def _library() -> Any:
    try:
        library = ctypes.CDLL("libseccomp.so.2", use_errno=True)
    except OSError:
        raise Unsupported("libseccomp.so.2 was not found on this host", "install libseccomp2") from None
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_init.argtypes = (ctypes.c_uint32,)
    library.seccomp_release.argtypes = (ctypes.c_void_p,)
    library.seccomp_attr_set.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32)
    library.seccomp_rule_add_array.argtypes = (
        ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p,
    )  # fmt: skip
    library.seccomp_export_bpf.argtypes = (ctypes.c_void_p, ctypes.c_int)
    library.seccomp_syscall_resolve_name.argtypes = (ctypes.c_char_p,)
    return library


def _add(library: Any, context: int, rule: Mapping[str, Any]) -> None:
    action = _ALLOW if rule["action"] == "SCMP_ACT_ALLOW" else _ERRNO | int(rule["errnoRet"])
    tests = [
        _Comparison(item["index"], _COMPARISONS[item["op"]], item["value"], item.get("valueTwo", 0))
        for item in rule.get("args", ())
    ]
    for name in rule["names"]:
        number = library.seccomp_syscall_resolve_name(name.encode())
        if number == _UNKNOWN_CALL:
            continue
        array = (_Comparison * len(tests))(*tests)
        failure = library.seccomp_rule_add_array(context, action, number, len(tests), array)
        if failure:
            raise HostError(f"libseccomp refuses the rule for {name}: {os.strerror(-failure)}")


def _export(library: Any, context: int) -> bytes:
    with tempfile.TemporaryFile() as file:
        failure = library.seccomp_export_bpf(context, file.fileno())
        if failure:
            raise HostError(f"libseccomp could not write the filter: {os.strerror(-failure)}")
        file.seek(0)
        return file.read()
