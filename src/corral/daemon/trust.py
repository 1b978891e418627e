"""What sandboxes trust: the host's roots, so that a company's own count inside as they do outside, and the gateway."""

import os
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.serialization import pkcs12

from corral.engine.environment import GATEWAY_CERTIFICATE, JAVA_PASSWORD, JAVA_STORE
from corral.errors import Unsupported
from corral.host.statefile import write_state

_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
_BEGIN, _END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"


def host_bundles(env: Mapping[str, str]) -> list[Path]:
    """The files that hold the host's roots: the distribution's bundle, and those that the environment names."""
    named = [
        env[name] for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS") if env.get(name)
    ]
    system = [path for path in _BUNDLES if Path(path).is_file()][:1]
    return [path for path in map(Path, dict.fromkeys([*system, *named])) if path.is_file()]


def certificates(text: bytes) -> list[bytes]:
    """The PEM certificates in `text`, without anything that stands around them."""
    found = []
    for piece in text.split(_BEGIN)[1:]:
        body, end, _ = piece.partition(_END)
        if end:
            found.append(_BEGIN + body + _END + b"\n")
    return found


def write_bundle(target: Path, more: Path) -> None:
    """Write the host's roots, and those of `more`, for programs of this host, atomically."""
    files = [*host_bundles(os.environ), more]
    found = dict.fromkeys(item for path in files for item in certificates(path.read_bytes()))
    write_state(target, b"".join(found), 0o644, lasting=False)


def write_trust(target: Path, gateway: str) -> Path:
    """Write what sandboxes trust, each file at once: the bundle, in which stand the host's roots and the certificate of
    the `gateway` (PEM); beside it that certificate alone, and the same roots as Java reads them. Certificates only, each
    once. Raises Unsupported where the host has no roots.
    """
    roots = dict.fromkeys(
        certificate for path in host_bundles(os.environ) for certificate in certificates(path.read_bytes())
    )
    if not roots:
        raise Unsupported("this host has no CA bundle", "install the package ca-certificates")
    own = gateway.encode()
    everything = [*roots, own]
    write_state(target, b"".join(everything), 0o644, lasting=False)
    write_state(target.with_name(GATEWAY_CERTIFICATE), own, 0o644, lasting=False)
    write_state(target.with_name(JAVA_STORE), java_store(everything), 0o644, lasting=False)
    # Sandboxes see the directory itself, which they may list as any other.
    target.parent.chmod(0o755)
    return target


def java_store(pem: Iterable[bytes]) -> bytes:
    """Certificates as a key store of Java, with the password that Java's own have. Those that cannot be read are left out."""
    entries = []
    for number, text in enumerate(pem):
        try:
            with warnings.catch_warnings():
                # Roots of long ago bend the rules of today.
                warnings.simplefilter("ignore")
                certificate = x509.load_pem_x509_certificate(text)
        except ValueError:
            continue
        entries.append(pkcs12.PKCS12Certificate(certificate, f"root-{number}".encode()))
    # What the oldest Java in use can read; there is nothing to keep secret here.
    form = (
        serialization.PrivateFormat.PKCS12.encryption_builder()
        .kdf_rounds(2048)
        .key_cert_algorithm(pkcs12.PBES.PBESv1SHA1And3KeyTripleDESCBC)
        .hmac_hash(hashes.SHA1())  # noqa: S303 (as said)
        .build(JAVA_PASSWORD.encode())
    )
    return pkcs12.serialize_java_truststore(entries, form)
