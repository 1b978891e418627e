"""What a secret of the vault is bound to: the hosts that get it, and the places in a request where it may stand."""

from dataclasses import dataclass
from enum import StrEnum

AUTHENTICATION_FIELDS = (
    "authorization",
    "x-api-key",
    "api-key",
    "x-goog-api-key",
    "x-auth-token",
    "private-token",
    "job-token",
)
"""Header fields in which a placeholder is looked for unless a binding names others as well."""


class Place(StrEnum):
    """A part of a request in which a placeholder is replaced."""

    HEADER = "header"
    QUERY = "query"
    PATH = "path"
    BODY = "body"
    WEBSOCKET = "websocket"


class Mode(StrEnum):
    """How the secret gets into a request: in exchange for its placeholder, into a header field of every request, or as the
    key that a request is signed with; or that a `certificate` of the client's is shown by.
    """

    REPLACE = "replace"
    SET = "set"
    AWS = "aws"
    CERTIFICATE = "certificate"


class Absent(StrEnum):
    """What becomes of a request to a bound host that holds no placeholder."""

    PASS = "pass"  # noqa: S105 (not a password)
    REJECT = "reject"


@dataclass(frozen=True, slots=True)
class Binding:
    """Where a secret goes. `hosts` are exact names or `*.` and a domain, at `ports`.

    `fields` are header fields besides `AUTHENTICATION_FIELDS`; with mode `set` it is the one that is written, `form` being
    its value with `{}` for the secret. `parameters` are those of the query that may hold it; none means all. `methods` and
    `paths` limit mode `set`. `replaces`: mode `set` takes the place of a field that is there, which is refused otherwise.
    `plaintext` allows it over unencrypted HTTP. `variable` is the environment variable that holds the placeholder, which
    begins with `prefix` and has `length` characters; `parts` counts them, where the secret is a key with its id and more.
    """

    hosts: tuple[str, ...]
    ports: tuple[int, ...] = (443,)
    places: tuple[Place, ...] = (Place.HEADER,)
    mode: Mode = Mode.REPLACE
    absent: Absent = Absent.PASS
    fields: tuple[str, ...] = ()
    form: str = "{}"
    parameters: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    replaces: bool = False
    plaintext: bool = False
    variable: str = ""
    prefix: str = ""
    length: int = 40
    parts: int = 1

    def covers(self, host: str, port: int, *, tls: bool) -> bool:
        """Whether the secret goes to a canonical host at a port (G-32, G-45, G-55)."""
        if port not in self.ports or not (tls or self.plaintext):
            return False
        return any(
            host == bound or (bound.startswith("*.") and host.endswith(bound[1:])) for bound in self.hosts
        )
