"""The CA bundle that sandboxes trust: the host's, so that a company's own roots count inside as they do outside."""

import os
from collections.abc import Mapping
from pathlib import Path

from corral.errors import Unsupported

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


def write_bundle(target: Path) -> Path:
    """Write the bundle, certificates only and each once, atomically. Raises Unsupported where the host has none."""
    unique = dict.fromkeys(
        certificate for path in host_bundles(os.environ) for certificate in certificates(path.read_bytes())
    )
    if not unique:
        raise Unsupported("this host has no CA bundle", "install the package ca-certificates")
    temporary = target.with_suffix(".new")
    temporary.write_bytes(b"".join(unique))
    temporary.chmod(0o644)
    temporary.replace(target)
    return target
