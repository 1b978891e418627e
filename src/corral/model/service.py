"""Programs that a sandbox starts by itself."""

from dataclasses import dataclass, field, replace

from corral.errors import InvalidInput
from corral.model.ids import check_env, check_guest_path, check_name, check_user
from corral.model.process import MAX_COMMAND

MAX_SERVICES = 32
START = "start"
"""The service that a template's own start command is."""


@dataclass(frozen=True, slots=True)
class Service:
    """A program that runs from each start of a sandbox on. The sandbox is ready once `ready`, where it is given, has
    succeeded within `patience` seconds; one try of it may take `attempt` seconds. `user` and `cwd` empty: the sandbox's
    own."""

    name: str
    command: tuple[str, ...]
    ready: tuple[str, ...] = ()
    user: str = ""
    cwd: str = ""
    env: dict[str, str] = field(default_factory=dict)
    patience: float = 120.0
    attempt: float = 30.0

    def checked(self) -> "Service":
        """Itself, or raise InvalidInput naming what is wrong."""
        check_name(self.name, "service name")
        if not self.command or not self.command[0]:
            raise InvalidInput(f"service {self.name} has no command", "give one, or leave the service out")
        for argv in (self.command, self.ready):
            if any("\0" in word for word in argv) or sum(len(word) for word in argv) > MAX_COMMAND // 4:
                raise InvalidInput(
                    f"a command of service {self.name} is not valid", "make it shorter, without NUL"
                )
        if self.user:
            check_user(self.user)
        if self.cwd:
            check_guest_path(self.cwd)
        check_env(self.env)
        for seconds in (self.patience, self.attempt):
            if not 1 <= seconds <= 3600:
                raise InvalidInput(
                    f"service {self.name} cannot be waited for {seconds:g} seconds", "use 1 to 3600"
                )
        return self


def services_of(
    start: tuple[str, ...], ready: tuple[str, ...], patience: float | None = None
) -> tuple[Service, ...]:
    """What a template's start and ready commands are; a ready command alone is waited for, too. `patience`: how long,
    where it is given; one try may then take all of it, for such a command may do nothing but wait."""
    if not start and not ready:
        return ()
    service = Service(START, start or ("true",), ready)
    return (service if patience is None else replace(service, patience=patience, attempt=patience),)
