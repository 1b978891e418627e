"""Every public error of Corral, in one place.

```
CorralError
├── UserError            the caller can mend it
│   ├── InvalidInput         400  exit 2   a value is malformed or out of range
│   ├── Unauthenticated      401  exit 3   no key, or a wrong one
│   ├── Forbidden            403  exit 3   policy says no
│   ├── NotFound             404  exit 4   no such object for this tenant
│   ├── Conflict             409  exit 5   the object is in a state, or has a name, that excludes this
│   ├── TooLarge             413  exit 2   over a stated limit
│   ├── Timeout              408  exit 124 the caller's own time limit passed
│   └── CommandFailed        422  exit 1   a command that had to succeed did not
├── HostError            the operator of the machine can mend it
│   ├── Unsupported          501  exit 6   this host lacks a kernel feature, program or runtime
│   ├── NoCapacity           503  exit 7   the host cannot carry it now; retrying later can help
│   ├── DiskFull             507  exit 7   the store or the data directory is full
│   ├── UpstreamFailed       502  exit 8   something outside of Corral answered wrongly or not at all
│   └── DaemonUnreachable    503  exit 9   (client side) no daemon answers
└── InternalError        500  exit 70  a defect of Corral
```

Each class has a stable `code` that clients may match on, an HTTP `status`, and a process `exit_code`. Each
instance has a `message` (what happened, one sentence) and a `hint` (what to do next; never empty).
"""

from typing import Any, ClassVar


class CorralError(Exception):
    """Base of all public errors.

    `message` states what happened; `hint` states what to do next. Neither may hold a secret.
    """

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1
    default_hint: ClassVar[str] = "run `corral doctor` and look at `corral daemon logs`"

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint or self.default_hint

    def __str__(self) -> str:
        return self.message

    def to_dict(self) -> dict[str, Any]:
        """The error as the API's JSON body: `{"code", "message", "hint"}`."""
        return {"code": self.code, "message": self.message, "hint": self.hint}


class UserError(CorralError):
    """The caller can mend it."""

    code = "user_error"
    status = 400
    exit_code = 2
    default_hint = "correct the request and try again"


class InvalidInput(UserError):
    """A value is malformed or out of its range; nothing was changed."""

    code = "invalid_input"


class Unauthenticated(UserError):
    """No API key, or a wrong one."""

    code = "unauthenticated"
    status = 401
    exit_code = 3
    default_hint = "pass a valid key: `Authorization: Bearer KEY`, or CORRAL_API_KEY for the CLI"


class Forbidden(UserError):
    """A policy says no."""

    code = "forbidden"
    status = 403
    exit_code = 3
    default_hint = "ask the operator of this host to allow it"


class NotFound(UserError):
    """No such object for this tenant."""

    code = "not_found"
    status = 404
    exit_code = 4
    default_hint = "list what exists: `corral ls`, `corral template ls`"


class Conflict(UserError):
    """The object's state, or a name already taken, excludes the request."""

    code = "conflict"
    status = 409
    exit_code = 5
    default_hint = "look at the object's state with `corral show NAME`"


class TooLarge(UserError):
    """Over a stated limit."""

    code = "too_large"
    status = 413


class Timeout(UserError):
    """The time limit that the caller set has passed."""

    code = "timeout"
    status = 408
    exit_code = 124
    default_hint = "raise the limit with --timeout"


class CommandFailed(UserError):
    """A command that had to succeed did not: a step of a build, or one that a client checks; `exit_status` is its exit code."""

    code = "command_failed"
    status = 422
    exit_code = 1
    default_hint = "read what the command wrote"

    def __init__(self, message: str, hint: str | None = None, *, exit_status: int = 1) -> None:
        super().__init__(message, hint)
        self.exit_status = exit_status


class HostError(CorralError):
    """The operator of the machine can mend it."""

    code = "host_error"
    status = 500
    exit_code = 6


class Unsupported(HostError):
    """This host lacks a kernel feature, a program or a runtime."""

    code = "unsupported"
    status = 501


class NoCapacity(HostError):
    """The host cannot carry it now.

    `of_tenant`: it is the tenant that is at a bound of its own, whatever the host has.
    """

    code = "no_capacity"
    status = 503
    exit_code = 7
    default_hint = "stop or pause another sandbox (`corral ls`), or ask for less"

    def __init__(self, message: str, hint: str | None = None, *, of_tenant: bool = False) -> None:
        super().__init__(message, hint)
        self.of_tenant = of_tenant


class DiskFull(HostError):
    """The store or the data directory is full."""

    code = "disk_full"
    status = 507
    exit_code = 7
    default_hint = "free space: `corral rm` old sandboxes, `corral template rm` unused templates"


class UpstreamFailed(HostError):
    """Something outside of Corral answered wrongly or not at all."""

    code = "upstream_failed"
    status = 502
    exit_code = 8
    default_hint = "check that the other side is up, then try again"


class DaemonUnreachable(HostError):
    """(Client side) no daemon answers."""

    code = "daemon_unreachable"
    status = 503
    exit_code = 9
    default_hint = "start it with `corral daemon start`; its log: `corral daemon logs`"


class InternalError(CorralError):
    """A defect of Corral."""

    code = "internal"
    status = 500
    exit_code = 70
    default_hint = "this is a defect: report it with the output of `corral daemon logs`"


def first_of(failures: ExceptionGroup[Exception], kind: type[Exception] = CorralError) -> Exception:
    """The failure to tell of those that a group of tasks ended with, the others having been cancelled or following from it:
    one of `kind`, if any.
    """
    found: Exception = failures.subgroup(kind) or failures
    while isinstance(found, ExceptionGroup):
        found = found.exceptions[0]
    return found


def all_errors() -> dict[str, type[CorralError]]:
    """Every error class by its code, for clients that map a body back to a class."""
    found: dict[str, type[CorralError]] = {}
    pending: list[type[CorralError]] = [CorralError]
    while pending:
        cls = pending.pop()
        found[cls.code] = cls
        pending.extend(cls.__subclasses__())
    return found
