"""A client's certificate as a secret: what servers are shown that ask for one (G-134). Values in, values out."""

import json
import re

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from corral.errors import InvalidInput

_KEY = re.compile(
    r"-----BEGIN ([A-Z]+ )?PRIVATE KEY-----[A-Za-z0-9+/=\s]+-----END ([A-Z]+ )?PRIVATE KEY-----"
)
_HINT = "give a PEM file with the certificate, those of its issuers, and its key without a passphrase"


def pem_of(text: str) -> str:
    """The PEM in what the vault holds, `{"pem": …}`. Raises InvalidInput for what no server can be shown."""
    try:
        pem = json.loads(text)["pem"]
        raw = pem.encode("ascii")
        certificate = x509.load_pem_x509_certificates(raw)[0]
        key = load_pem_private_key(_key_block(pem).encode(), None)
        mine, its = (
            one.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
            for one in (key.public_key(), certificate.public_key())
        )
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        IndexError,
        RecursionError,
        UnsupportedAlgorithm,
    ):
        raise InvalidInput("this is no certificate of a client's with its key", _HINT) from None
    if mine != its:
        raise InvalidInput("the key is not that of the first certificate", _HINT)
    return str(pem)


def mark(pem: str) -> str:
    """A line of the key, by which a copy of it is found wherever it is: not the first, which keys of a kind begin with."""
    lines = [line.strip() for line in _key_block(pem).splitlines() if line.strip() and "-----" not in line]
    return max(lines[1:], key=len, default=lines[0])


def _key_block(pem: str) -> str:
    found = _KEY.search(pem)
    if found is None:
        raise ValueError("no key")
    return found[0]
