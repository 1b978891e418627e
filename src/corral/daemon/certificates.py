"""Certificates of the API's TLS listener, for a domain of one's own without a public CA.

A CA of this installation signs one certificate for the domain and all names below it. Whoever trusts that CA trusts it for
this domain only: the CA is constrained to it. Both are kept, and made anew before they end or when the domain changes.
"""

import ipaddress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from corral.errors import InvalidInput
from corral.host.statefile import write_state

_DAYS = 397
_RENEW_BEFORE = timedelta(days=30)
_LOOPBACK = ipaddress.ip_network("127.0.0.0/8")


@dataclass(frozen=True, slots=True)
class Certificate:
    """Files that a TLS listener loads. `ca` is what clients must trust; None where a public CA vouches."""

    chain: Path
    key: Path
    ca: Path | None


def certificate_for(directory: Path, domain: str, now: datetime) -> Certificate:
    """The certificate of a domain, made with its CA where they are missing, wrong or about to end."""
    found = Certificate(directory / "chain.pem", directory / "key.pem", directory / "ca.pem")
    if not _fits(found.chain, domain, now):
        _make(found, domain, now)
    return found


def given_certificate(chain: str, key: str) -> Certificate:
    """The operator's own. Raises InvalidInput for files that are not there or do not hold what they should."""
    try:
        x509.load_pem_x509_certificates(Path(chain).read_bytes())
        serialization.load_pem_private_key(Path(key).read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise InvalidInput(
            f"the TLS certificate cannot be used: {error}", "give PEM files of the chain and of its open key"
        ) from error
    return Certificate(Path(chain), Path(key), None)


def _fits(chain: Path, domain: str, now: datetime) -> bool:
    try:
        certificate = x509.load_pem_x509_certificates(chain.read_bytes())[0]
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, x509.ExtensionNotFound):
        return False
    return (
        domain in names.get_values_for_type(x509.DNSName)
        and certificate.not_valid_after_utc - _RENEW_BEFORE > now
    )


def _make(found: Certificate, domain: str, now: datetime) -> None:
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = _authority(authority_key, domain, now)
    leaf = _leaf(key, authority, authority_key, domain, now)
    found.chain.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    assert found.ca is not None  # noqa: S101  for the type checker: ours always has one
    write_state(found.key, secret, 0o600)
    write_state(found.ca, _pem(authority), 0o644)
    write_state(found.chain, _pem(leaf) + _pem(authority), 0o644)
    # The CA's key is not kept: it has signed all that it ever signs.


def _authority(key: ec.EllipticCurvePrivateKey, domain: str, now: datetime) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Corral CA for {domain}"[:64])])
    permitted = [x509.DNSName(domain), x509.DNSName("localhost"), x509.IPAddress(_LOOPBACK)]
    return (
        _builder(name, name, key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.NameConstraints(permitted, None), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _leaf(
    key: ec.EllipticCurvePrivateKey,
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    domain: str,
    now: datetime,
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, domain[:64])])
    names = [*map(x509.DNSName, (domain, f"*.{domain}", "localhost", "*.localhost"))]
    loopback = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    return (
        _builder(subject, authority.subject, key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([*names, loopback]), critical=False)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
        )
        .sign(authority_key, hashes.SHA256())
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=_DAYS))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
