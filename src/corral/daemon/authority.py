"""The certificate authority of an installation: made at its first start, known to its sandboxes and to nobody else."""

import datetime
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from corral.errors import HostError
from corral.host.statefile import write_state
from corral.model.secrets import Secret

LIFE = datetime.timedelta(days=3650)
_RENEWED = datetime.timedelta(days=400)
"""Life left at which it is made anew: leaves must end before it does."""
_BEFORE = datetime.timedelta(days=2)


@dataclass(frozen=True, slots=True)
class AuthorityFile:
    """An authority: its certificate in PEM, which is public, and its key in PEM."""

    certificate: str
    key: Secret


def load_authority(path: Path, instance: str) -> AuthorityFile:
    """The authority in `path`, made where there is none or it is about to end.

    Raises HostError for a file that others could have read or placed (G-40, G-115).
    """
    text = _read(path)
    if text is not None:
        found = _parse(path, text)
        certificate = x509.load_pem_x509_certificate(found.certificate.encode())
        if certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC) > _RENEWED:
            return found
    made = _make(instance)
    write_state(path, (made.certificate + made.key.reveal()).encode())
    return made


def _read(path: Path) -> str | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _refused(path, f"it cannot be opened ({error.strerror})") from None
    with os.fdopen(fd, encoding="ascii", errors="replace") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid not in (0, os.geteuid()) or found.st_mode & 0o077:
            raise _refused(path, "others may read or replace it")
        return file.read(64 * 1024)


def _parse(path: Path, text: str) -> AuthorityFile:
    certificate, end, key = text.partition("-----END CERTIFICATE-----\n")
    try:
        x509.load_pem_x509_certificate((certificate + end).encode())
        serialization.load_pem_private_key(key.encode(), None)
    except (ValueError, TypeError):
        raise _refused(path, "it holds no certificate with its key") from None
    return AuthorityFile(certificate + end, Secret(key))


def _refused(path: Path, why: str) -> HostError:
    return HostError(
        f"the certificate authority {path} is refused: {why}",
        "remove it: another one is made at the next start",
    )


def _make(instance: str) -> AuthorityFile:
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Corral"),
            x509.NameAttribute(NameOID.COMMON_NAME, f"Corral gateway {instance}"),
        ]
    )
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return AuthorityFile(
        certificate.public_bytes(serialization.Encoding.PEM).decode(), Secret(private.decode())
    )


def _usage() -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
