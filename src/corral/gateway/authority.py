"""The authority in whose name the gateway ends TLS: a certificate for each host that must be looked into, made when a
sandbox first connects to it.

Sandboxes trust this authority and nothing else on the host does; its key never leaves the host. All leaves have one key:
what is told apart by them are names, and the key is this process's own.
"""

import asyncio
import datetime
import secrets as randomness
import ssl
from collections import OrderedDict
from dataclasses import dataclass
from ipaddress import ip_address

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from corral.errors import InvalidInput
from corral.gateway.clientcerts import load_chain
from corral.model.secrets import Secret
from corral.policy.egress import literal
from corral.wire.http2 import ALPN

MAX_LEAVES = 1024
RENEWAL = datetime.timedelta(hours=12)
# A guest whose clock is off by hours must still find its leaf valid (G-117).
_BEFORE = datetime.timedelta(hours=48)
_AFTER = datetime.timedelta(days=30)
_COMMON_NAME_MAX = 64


@dataclass(frozen=True, slots=True)
class _Leaf:
    context: ssl.SSLContext
    made: datetime.datetime


class Authority:
    """Gives TLS contexts for names. Raises InvalidInput for a certificate and key that are none, or do not match."""

    def __init__(self, certificate: str, key: Secret) -> None:
        try:
            self._certificate = x509.load_pem_x509_certificate(certificate.encode())
            loaded = serialization.load_pem_private_key(key.reveal().encode(), None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise _unusable() from None
        if not isinstance(loaded, ec.EllipticCurvePrivateKey) or (
            loaded.public_key() != self._certificate.public_key()
        ):
            raise _unusable()
        self._key = loaded
        self._pem = certificate.encode()
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        self._leaves: OrderedDict[str, _Leaf] = OrderedDict()
        self._making: dict[str, asyncio.Future[_Leaf]] = {}

    def has(self, host: str) -> bool:
        """Whether a context for `host` is at hand."""
        leaf = self._leaves.get(host)
        return leaf is not None and _now() - leaf.made < RENEWAL

    async def context(self, host: str) -> ssl.SSLContext:
        """A server's context for a canonical host. It is made in a thread, once for all who wait for it (G-120)."""
        if self.has(host):
            self._leaves.move_to_end(host)
            return self._leaves[host].context
        if host not in self._making:
            loop = asyncio.get_running_loop()
            self._making[host] = loop.run_in_executor(None, self._leaf, host)
        try:
            leaf = await asyncio.shield(self._making[host])
        finally:
            self._making.pop(host, None)
        self._leaves[host] = leaf
        while len(self._leaves) > MAX_LEAVES:
            self._leaves.popitem(last=False)
        return leaf.context

    def _leaf(self, host: str) -> _Leaf:
        now = _now()
        leaf = self.certificate(host, now).public_bytes(serialization.Encoding.PEM)
        key = self._leaf_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # In this order: what speaks both is answered in the older one, and only what cannot be is not (G-107).
        context.set_alpn_protocols(["http/1.1", ALPN])
        context.options |= ssl.OP_NO_RENEGOTIATION
        load_chain(context, leaf + self._pem + key)
        return _Leaf(context, now)

    def certificate(self, host: str, now: datetime.datetime) -> x509.Certificate:
        """A leaf for a host (G-116, G-117)."""
        address = literal(host)
        name = x509.DNSName(host) if address is None else x509.IPAddress(ip_address(host))
        issuer = self._certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:_COMMON_NAME_MAX])]))
            .issuer_name(self._certificate.subject)
            .public_key(self._leaf_key.public_key())
            .serial_number(int.from_bytes(randomness.token_bytes(16), "big") >> 1)
            .not_valid_before(now - _BEFORE)
            .not_valid_after(min(now + _AFTER, self._certificate.not_valid_after_utc))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectAlternativeName([name]), critical=False)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self._leaf_key.public_key()), critical=False
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )


def _usage() -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _unusable() -> InvalidInput:
    return InvalidInput(
        "the gateway's certificate authority cannot be used",
        "remove authority.pem in the data directory: it is made anew",
    )
