"""Identifiers and the rules that names follow."""

import re
from typing import NewType
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from corral.errors import InvalidInput

SandboxId = NewType("SandboxId", str)
"""16 lower-case hexadecimal digits, random, never reused."""
TenantId = NewType("TenantId", str)
TemplateId = NewType("TemplateId", str)
"""16 lower-case hexadecimal digits."""
LayerDigest = NewType("LayerDigest", str)
"""`sha256:` and 64 hexadecimal digits."""
ProcessId = NewType("ProcessId", int)
"""A process that Corral started in a sandbox: unique per sandbox, 1 to 2**31 - 1. Not a PID of any kernel."""
ImageId = NewType("ImageId", str)
"""16 lower-case hexadecimal digits: a machine image, what ran in a sandbox at one moment."""
GrantId = NewType("GrantId", str)
VolumeId = NewType("VolumeId", str)
"""16 lower-case hexadecimal digits."""

DEFAULT_TENANT = TenantId("default")

NAME_PATTERN = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_NAME = re.compile(NAME_PATTERN)
TEMPLATE_PATTERN = r"[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9_])?(:[a-z0-9_][a-z0-9_.-]{0,62})?"
_TEMPLATE_NAME = re.compile(TEMPLATE_PATTERN)
_ID = re.compile(r"[0-9a-f]{16}")
_LABEL_KEY = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,126}[A-Za-z0-9])?")
_ENV_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
_TIMEZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+){0,2}")
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}|[0-9]{1,5}(:[0-9]{1,5})?")

MAX_LABELS = 64
MAX_LABEL_VALUE = 1024
MAX_ENV = 512
MAX_ENV_VALUE = 64 * 1024
MAX_PATH = 4095


def check_name(name: str, what: str = "name") -> str:
    """Return `name`, or raise InvalidInput: DNS-label form, 1 to 63 of a-z, 0-9 and inner hyphens."""
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"{what} {name[:80]!r} is not valid",
            "use 1 to 63 lower-case letters, digits and hyphens, with a letter or digit at both ends",
        )
    return name


def check_template_name(name: str) -> str:
    """Return `name`, or raise InvalidInput: 1 to 63 of a-z, 0-9, hyphens and underscores, and a tag if any after a colon."""
    if not _TEMPLATE_NAME.fullmatch(name):
        raise InvalidInput(
            f"template name {name[:80]!r} is not valid",
            "use 1 to 63 lower-case letters, digits, hyphens and underscores; a tag such as `:v2` may follow",
        )
    return name


def is_id(text: str) -> bool:
    """Whether `text` has the form of an id of 16 digits."""
    return _ID.fullmatch(text) is not None


def check_labels(labels: dict[str, str]) -> dict[str, str]:
    """Return `labels`, or raise InvalidInput: at most 64, values of at most 1,024 characters."""
    if len(labels) > MAX_LABELS:
        raise InvalidInput(f"{len(labels)} labels are too many", f"give at most {MAX_LABELS}")
    for key, value in labels.items():
        if not _LABEL_KEY.fullmatch(key):
            raise InvalidInput(
                f"label key {key[:80]!r} is not valid",
                "use 1 to 128 letters, digits, dots, dashes, underscores and slashes",
            )
        if len(value) > MAX_LABEL_VALUE or "\0" in value:
            raise InvalidInput(
                f"the value of label {key!r} is not valid",
                f"use at most {MAX_LABEL_VALUE} characters, no NUL",
            )
    return labels


def check_env(env: dict[str, str]) -> dict[str, str]:
    """Return `env`, or raise InvalidInput: at most 512 variables, 64 KiB each, no NUL."""
    if len(env) > MAX_ENV:
        raise InvalidInput(f"{len(env)} environment variables are too many", f"give at most {MAX_ENV}")
    for key, value in env.items():
        if not _ENV_KEY.fullmatch(key):
            raise InvalidInput(
                f"environment variable name {key[:80]!r} is not valid",
                "use letters, digits and underscores, not starting with a digit",
            )
        if len(value) > MAX_ENV_VALUE or "\0" in value:
            raise InvalidInput(
                f"the value of environment variable {key!r} is not valid",
                f"use at most {MAX_ENV_VALUE} characters and no NUL",
            )
    return env


def check_user(user: str) -> str:
    """Return `user`, or raise InvalidInput: a login name, `uid` or `uid:gid`."""
    if not _USER.fullmatch(user):
        raise InvalidInput(f"user {user[:40]!r} is not valid", "give a login name, a uid or uid:gid")
    return user


def check_timezone(zone: str) -> str:
    """Return `zone`, or raise InvalidInput: a name of the IANA database. Where the host has none, any name of that form."""
    if not _TIMEZONE.fullmatch(zone) or (_has_zone("Europe/London") and not _has_zone(zone)):
        raise InvalidInput(
            f"there is no time zone {zone[:64]!r}",
            "give a name such as Europe/Berlin, America/New_York or UTC",
        )
    return zone


def _has_zone(zone: str) -> bool:
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True


def check_guest_path(path: str) -> str:
    """Return `path`, or raise InvalidInput: absolute, at most 4,095 bytes, no NUL.

    `..` is allowed: a guest's path is resolved inside the guest's root and cannot leave it.
    """
    if not path.startswith("/"):
        raise InvalidInput(f"path {path[:80]!r} is not absolute", "start it with /")
    if "\0" in path or len(path.encode("utf-8", "surrogateescape")) > MAX_PATH:
        raise InvalidInput("the path is not valid", f"use at most {MAX_PATH} bytes and no NUL")
    return path
