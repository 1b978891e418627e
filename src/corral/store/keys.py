"""The installation's key, and everything that is derived from it.

One file of 32 random bytes (hexadecimal, mode 0600) lies beside the database. From it HKDF derives one key
per purpose, so that a value made for one purpose says nothing about another. Whoever has only the database
can neither read a secret, nor move it to another name, tenant or address, nor forge a token, an API key or
the head of the audit log.
"""

import base64
import hmac
import json
import os
import secrets as randomness
import stat
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from corral.engine.ports import OpenedSecret
from corral.errors import HostError
from corral.model.binding import Binding
from corral.model.ids import GrantId, SandboxId, TenantId
from corral.model.route import Route
from corral.model.secrets import Provider, Secret, SecretForm
from corral.store.codec import decode
from corral.wire.codec import encode

KEY_BYTES = 32
_NONCE_BYTES = 12
TOKEN_PREFIX = "sk-crl-"  # noqa: S105 (SDKs check that a key starts like this)
API_KEY_PREFIX = "e2b_"  # with 40 hexadecimal digits: what clients of the E2B API check
API_KEY_BYTES = 20


class Keys:
    """Keys of one installation, by purpose."""

    __slots__ = ("_api", "_audit", "_check", "_routes", "_seeds", "_tokens", "_vault")

    def __init__(self, master: bytes) -> None:
        self._vault = AESGCM(_derive(master, "vault"))
        self._routes = AESGCM(_derive(master, "routes"))
        self._tokens = _derive(master, "grant tokens")
        self._seeds = _derive(master, "placeholders")
        self._api = _derive(master, "api keys")
        self._audit = _derive(master, "audit head")
        self._check = _derive(master, "key check")

    def check_value(self) -> str:
        """A value that tells whether a database belongs to this key, and nothing about the key."""
        return hmac.digest(self._check, b"corral", "sha256").hex()

    def seal(self, secret: OpenedSecret) -> bytes:
        """The secret's value encrypted: nonce, ciphertext, tag. Bound to all else that is known of it."""
        nonce = randomness.token_bytes(_NONCE_BYTES)
        return nonce + self._vault.encrypt(nonce, secret.value.reveal().encode("utf-8"), _binding(secret))

    def unseal(
        self,
        tenant: TenantId,
        name: str,
        provider: Provider,
        base_url: str,
        sealed: bytes,
        binding: Binding | None = None,
        form: SecretForm = SecretForm.VALUE,
    ) -> OpenedSecret:
        """The secret again. Raises HostError if any of the row was altered, or is another key's."""
        bound = OpenedSecret(tenant, name, provider, base_url, Secret(""), binding, form)
        try:
            plain = self._vault.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], _binding(bound))
        except (InvalidTag, ValueError, TypeError):
            raise HostError(
                f"secret {name!r} cannot be decrypted: its row was altered",
                f"store it again: `corral secret add {name}`",
            ) from None
        return OpenedSecret(tenant, name, provider, base_url, Secret(plain.decode("utf-8")), binding, form)

    def seal_route(self, tenant: TenantId, route: Route) -> str:
        """A route with its secrets encrypted, for this tenant alone."""
        nonce = randomness.token_bytes(_NONCE_BYTES)
        plain = json.dumps(encode(route, opened=True)).encode()
        return base64.b64encode(nonce + self._routes.encrypt(nonce, plain, tenant.encode())).decode()

    def open_route(self, tenant: TenantId, sealed: str) -> Route:
        """The route again. Raises HostError if it was altered, or is another key's or tenant's."""
        try:
            raw = base64.b64decode(sealed, validate=True)
            plain = self._routes.decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], tenant.encode())
        except (InvalidTag, ValueError):
            raise HostError(
                "a sandbox's network options cannot be decrypted: its row was altered",
                "make the sandbox anew",
            ) from None
        return decode(Route, json.loads(plain))

    def grant_token(self, grant: GrantId) -> Secret:
        """The token of a grant: always the same for the same id."""
        return Secret(TOKEN_PREFIX + _text(hmac.digest(self._tokens, grant.encode("utf-8"), "sha256")))

    def placeholder_seed(self, sandbox: SandboxId) -> Secret:
        """What a sandbox's placeholders are made of: always the same for the same id."""
        return Secret(hmac.digest(self._seeds, sandbox.encode("utf-8"), "sha256").hex())

    def webhook_key(self) -> Secret:
        """The key that signs what is told to a webhook."""
        return Secret("whk-" + hmac.digest(self._tokens, b"webhook", "sha256").hex())

    def new_api_key(self) -> Secret:
        """A random API key."""
        return Secret(API_KEY_PREFIX + randomness.token_hex(API_KEY_BYTES))

    def api_key_hash(self, key: str) -> str:
        """What is kept of an API key: useless without the installation's key."""
        return hmac.digest(self._api, key.encode("utf-8", "surrogateescape"), "sha256").hex()

    def audit_head(self, sequence: int, record_hash: str) -> str:
        """The seal on the last record of the audit log, which shows that none was cut off its end."""
        return hmac.digest(self._audit, f"{sequence}:{record_hash}".encode(), "sha256").hex()

    def audit_start(self, sequence: int, record_hash: str) -> str:
        """The seal on the last record that was moved out of the database."""
        return hmac.digest(self._audit, f"start:{sequence}:{record_hash}".encode(), "sha256").hex()

    def audit_part(self, after: int, after_hash: str, last: int, last_hash: str) -> str:
        """The seal on records that were moved out together."""
        text = f"part:{after}:{after_hash}:{last}:{last_hash}"
        return hmac.digest(self._audit, text.encode(), "sha256").hex()


def _derive(master: bytes, purpose: str) -> bytes:
    info = f"corral 1 {purpose}".encode()
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=info).derive(master)


def _binding(secret: OpenedSecret) -> bytes:
    # The address is bound too: else whoever can write to the database could have a key sent to his own
    # server.
    fields: list[object] = ["secret", secret.tenant, secret.name, secret.provider.value, secret.base_url]
    if secret.binding is not None:
        fields.append(encode(secret.binding))
    if secret.form is not SecretForm.VALUE:
        fields.append(secret.form.value)
    return json.dumps(fields, separators=(",", ":")).encode()


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def load_key(path: Path) -> bytes | None:
    """The key in `path`, or None if there is no such file.

    Raises HostError for a symbolic link, something other than a regular file, a file of another user, or
    one that others may read: whoever could have read or placed it knows every secret.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _refused(path, f"it cannot be opened ({error.strerror}; links are not followed)") from None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise _refused(path, "it is not a regular file")
        if found.st_uid not in (0, os.geteuid()):
            raise _refused(path, f"it belongs to user {found.st_uid}")
        if found.st_mode & 0o077:
            raise _refused(
                path,
                "others may read or write it",
                f"chmod 600 {path}, and replace the secrets if others did",
            )
        raw = os.read(fd, 4096)
    finally:
        os.close(fd)
    return _parse(path, raw)


def _parse(path: Path, raw: bytes) -> bytes:
    try:
        key = bytes.fromhex(raw.decode("ascii").strip())
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise _refused(path, "it does not hold a key", "restore it from a backup")
    return key


def create_key(path: Path) -> bytes:
    """Make `path` with a new key, at once and durably; if another process was first, its key.

    The parent directory must exist.
    """
    temporary = path.with_name(f".{path.name}.{randomness.token_hex(8)}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            os.write(fd, randomness.token_bytes(KEY_BYTES).hex().encode() + b"\n")
            os.fsync(fd)
        finally:
            os.close(fd)
        _publish(temporary, path)
    finally:
        temporary.unlink()
    key = load_key(path)
    if key is None:
        raise _refused(path, "it vanished while it was made")
    return key


def _publish(temporary: Path, path: Path) -> None:
    """Give the finished file its name, unless the name is taken."""
    try:
        os.link(temporary, path, follow_symlinks=False)
    except FileExistsError:
        return
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _refused(path: Path, why: str, hint: str | None = None) -> HostError:
    return HostError(f"the key file {path} is refused: {why}", hint or f"look at it: ls -l {path}")
