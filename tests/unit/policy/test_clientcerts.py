"""A certificate of a client's: what is taken for one."""

import datetime
import json

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import InvalidInput
from corral.model.binding import Binding, Mode
from corral.model.secrets import Secret
from corral.policy.bindings import complete_binding, parts_of
from corral.policy.clientcerts import mark, pem_of

Key = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey


def make(key: Key, *, form: serialization.PrivateFormat = serialization.PrivateFormat.PKCS8) -> str:
    """A certificate and its key."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "client")])
    now = datetime.datetime.now(datetime.UTC)
    digest = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    certificate = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True).sign(key, digest)
    )  # fmt: skip
    pem = serialization.Encoding.PEM
    return (
        certificate.public_bytes(pem) + key.private_bytes(pem, form, serialization.NoEncryption())
    ).decode()


EC = make(ec.generate_private_key(ec.SECP256R1()))
KEYS = [
    EC,
    make(ec.generate_private_key(ec.SECP256R1()), form=serialization.PrivateFormat.TraditionalOpenSSL),
    make(ed25519.Ed25519PrivateKey.generate()),
    make(rsa.generate_private_key(65537, 2048)),
]


@pytest.mark.parametrize("pem", KEYS)
def test_it_is_found_by_a_line_of_its_key(pem: str) -> None:
    """G-134, G-44."""
    value = Secret(json.dumps({"pem": pem}))
    assert pem_of(value.reveal()) == pem
    (line,) = parts_of(value, Mode.CERTIFICATE)
    assert line in pem.partition("PRIVATE KEY-----")[2].splitlines()
    assert len(line) >= 16
    assert complete_binding("bank", value, Binding(("bank.example",), mode=Mode.CERTIFICATE), None).parts == 1
    with pytest.raises(InvalidInput):
        complete_binding("bank", value, Binding(("b.example",), mode=Mode.CERTIFICATE, plaintext=True), None)


def test_a_key_of_another_certificate_is_refused() -> None:
    other = make(ec.generate_private_key(ec.SECP256R1()))
    mixed = (
        EC.partition("-----BEGIN PRIVATE")[0]
        + "-----BEGIN PRIVATE"
        + other.partition("-----BEGIN PRIVATE")[2]
    )
    with pytest.raises(InvalidInput, match="not that of the first"):
        pem_of(json.dumps({"pem": mixed}))
    assert mark(mixed) == mark(other)


@given(
    st.text(max_size=60)
    | st.sampled_from(["[" * 100_000, "{}", '{"pem": 7}', '{"pem": ""}', json.dumps({"pem": EC[:300]})])
)
def test_what_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        pem_of(text)
