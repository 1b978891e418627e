"""What stands before the pack in a push, without I/O: the commands, capabilities and options of `git-receive-pack`.

```
shallow id                          from a shallow clone: where its history ends
old new ref NUL capabilities        first command
old new ref                         further ones
0000
option                              if `push-options` was agreed on
0000
PACK…                               unless all it does is delete
```

A sandbox sends it, so every byte is hostile: what git itself would read in two ways, is refused (G-248, G-249).
"""

import re
from dataclasses import dataclass, field

from corral.errors import InvalidInput, TooLarge
from corral.model.push import Command
from corral.wire.pktline import FLUSH, Kind, Line, encode, malformed, take

MAX_COMMANDS = 500
MAX_SECTION = 96 * 1024
"""Bytes before the pack."""
MAX_REF = 255
MAX_OPTIONS = 32
SIDEBAND = 1000
"""Bytes of a line of the smaller side band, with its length; the larger takes 65520."""

_COMMAND = re.compile(rb"([0-9a-f]{40}|[0-9a-f]{64}) ([0-9a-f]{40}|[0-9a-f]{64}) (.+)", re.DOTALL)
_SHALLOW = re.compile(rb"shallow ([0-9a-f]{40}|[0-9a-f]{64})")
_BAD_IN_REF = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|/\.|/-|\.lock(/|$)")


@dataclass(frozen=True, slots=True)
class PushHead:
    """A push without its pack. `raw` is what was read, byte for byte."""

    commands: tuple[Command, ...]
    capabilities: frozenset[str]
    options: tuple[str, ...]
    raw: bytes

    @property
    def has_pack(self) -> bool:
        """Whether a pack follows."""
        return any(not one.deletes for one in self.commands)

    @property
    def band(self) -> int | None:
        """Bytes of a side band's line; None where none was agreed on."""
        if "side-band-64k" in self.capabilities:
            return 65520
        return SIDEBAND if "side-band" in self.capabilities else None

    @property
    def reports(self) -> bool:
        """Whether the client reads what became of each ref."""
        return bool({"report-status", "report-status-v2"} & self.capabilities)

    @property
    def object_format(self) -> str:
        """Of its ids."""
        return "sha256" if len(self.commands[0].new) == 64 else "sha1"


def valid_ref(name: str) -> bool:
    """Whether a full ref's name is one that git takes, and that reads as it is (G-250)."""
    return (
        5 < len(name) <= MAX_REF
        and name.startswith("refs/")
        and name.count("/") >= 2
        and not name.endswith(("/", "."))
        and _BAD_IN_REF.search(name) is None
        and name.isprintable()
    )


@dataclass(slots=True)
class PushReader:
    """Takes a push in pieces until its pack begins. `rest` is then what came of the pack."""

    _buffer: bytearray = field(default_factory=bytearray)
    _raw: bytearray = field(default_factory=bytearray)
    _commands: list[Command] = field(default_factory=list)
    _capabilities: frozenset[str] = frozenset()
    _options: list[str] = field(default_factory=list)
    _in_options: bool = False

    def feed(self, data: bytes) -> PushHead | None:
        """The whole head, once it is there; empty commands for a client that only asks whether it may send. Raises
        InvalidInput or TooLarge.
        """
        self._buffer += data
        while (line := take(self._buffer)) is not None:
            self._raw += line.encode()
            if len(self._raw) > MAX_SECTION:
                raise _too_much()
            if self._line(line):
                return PushHead(
                    tuple(self._commands), self._capabilities, tuple(self._options), bytes(self._raw)
                )
        if len(self._raw) + len(self._buffer) > MAX_SECTION:
            raise _too_much()
        return None

    @property
    def rest(self) -> bytes:
        """What came after the head."""
        return bytes(self._buffer)

    def _line(self, line: Line) -> bool:
        """Take a line; whether it ends the head."""
        if line.kind is Kind.FLUSH:
            if self._in_options or "push-options" not in self._capabilities:
                return True
            self._in_options = True
            return False
        if line.kind is not Kind.DATA:
            raise malformed("a mark is where a command should be")
        if self._in_options:
            self._option(line.data)
        else:
            self._command(line.data)
        return False

    def _command(self, data: bytes) -> None:
        body, zero, capabilities = data.partition(b"\0")
        if zero and self._commands:
            raise malformed("capabilities are named twice")
        if zero:
            text = _text(capabilities.rstrip(b"\n"))
            if not text.isprintable():
                raise malformed("a capability holds control characters")
            self._capabilities = frozenset(text.split(" ")) - {""}
        body = body.removesuffix(b"\n")
        if not self._commands and not zero and _SHALLOW.fullmatch(body):
            return  # where a shallow clone ends: the server judges that
        if body.startswith(b"push-cert"):
            # It is not offered, since it says all commands a second time.
            raise InvalidInput("a signed push cannot be read", "push without --signed")
        found = _COMMAND.fullmatch(body)
        if found is None:
            raise malformed("a command is not `old new ref`")
        if len(self._commands) >= MAX_COMMANDS:
            raise _too_much()
        self._add(Command(_text(found[3]), found[1].decode(), found[2].decode()))

    def _add(self, command: Command) -> None:
        if not valid_ref(command.ref):
            raise InvalidInput(
                f"{command.ref[:80]!r} is not a ref that can be pushed", "see `git check-ref-format`"
            )
        if len(command.old) != len(command.new) or (
            self._commands and len(command.new) != len(self._commands[0].new)
        ):
            raise malformed("ids of two lengths are mixed")
        if command.creates and command.deletes:
            raise malformed("a command has no id")
        if command.ref in {one.ref for one in self._commands}:
            raise malformed("a ref is named twice")
        self._commands.append(command)

    def _option(self, data: bytes) -> None:
        if len(self._options) >= MAX_OPTIONS:
            raise _too_much()
        text = _text(data.removesuffix(b"\n"))
        if not text.isprintable():
            raise malformed("a push option holds control characters")
        self._options.append(text)


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise malformed("a name is not UTF-8") from None


def _too_much() -> TooLarge:
    return TooLarge("the push names too many refs at once", f"push at most {MAX_COMMANDS} at a time")


def report(head: PushHead, reasons: dict[str, str], unpack: str = "ok") -> bytes:
    """The answer that tells what became of each ref: `reasons` for those that were refused (G-254, G-255)."""
    lines = [encode(f"unpack {unpack}\n".encode())]
    for one in head.commands:
        reason = reasons.get(one.ref)
        text = f"ok {one.ref}\n" if reason is None else f"ng {one.ref} {reason}\n"
        lines.append(encode(text.encode()))
    body = b"".join([*lines, FLUSH]) if head.reports else b""
    if head.band is None:
        return body
    return band(head, 1, body) + FLUSH


def band(head: PushHead, number: int, data: bytes) -> bytes:
    """Data in lines of a side band: 1 is the answer, 2 is shown to the user, 3 ends it as an error."""
    most = (head.band or SIDEBAND) - 5
    return b"".join(
        encode(bytes([number]) + data[start : start + most]) for start in range(0, len(data), most)
    )


def shown(head: PushHead, text: str) -> bytes:
    """Lines that git shows with `remote:` before each; nothing without a side band."""
    return b"" if head.band is None else band(head, 2, text.rstrip("\n").encode() + b"\n")
