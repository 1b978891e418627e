"""The authority in whose name the gateway ends TLS: one for each installation, its key in a file for nobody else."""

import os
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from corral.daemon.authority import load_authority
from corral.errors import HostError


def test_it_is_made_once_for_each_installation(tmp_path: Path) -> None:
    """G-115: in a file of its owner's alone."""
    path = tmp_path / "authority.pem"
    made = load_authority(path, "one")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = load_authority(path, "one")
    assert (again.certificate, again.key.reveal()) == (made.certificate, made.key.reveal())
    (tmp_path / "other").mkdir()
    other = load_authority(tmp_path / "other" / "authority.pem", "one")
    assert other.key.reveal() != made.key.reveal()
    assert "PRIVATE" not in made.certificate
    assert "PRIVATE" not in repr(made)


@pytest.mark.parametrize("how", ["readable", "group", "link", "pipe", "torn"])
def test_one_that_others_could_have_read_or_placed_is_refused(tmp_path: Path, how: str) -> None:
    """G-40, G-115: and is not replaced, so that what it was is not lost."""
    path = tmp_path / "authority.pem"
    load_authority(path, "one")
    match how:
        case "readable":
            path.chmod(0o604)
        case "group":
            path.chmod(0o660)
        case "link":
            path.rename(tmp_path / "real")
            path.symlink_to(tmp_path / "real")
        case "pipe":
            path.rename(tmp_path / "real")
            os.mkfifo(path, 0o600)
        case _:
            path.write_text(path.read_text()[:700])
    with pytest.raises(HostError):
        load_authority(path, "one")


def test_its_certificate_says_what_it_may_do(tmp_path: Path) -> None:
    """G-116: sign leaves, and nothing else; strict clients want each of these."""
    certificate = x509.load_pem_x509_certificate(load_authority(tmp_path / "a.pem", "x").certificate.encode())
    basic = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (basic.critical, basic.value.ca, basic.value.path_length) == (True, True, 0)
    usage = certificate.extensions.get_extension_for_class(x509.KeyUsage)
    assert usage.critical
    assert (usage.value.key_cert_sign, usage.value.crl_sign, usage.value.digital_signature) == (
        True,
        True,
        False,
    )
    key = certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    assert key == x509.SubjectKeyIdentifier.from_public_key(certificate.public_key())
    assert certificate.public_bytes(serialization.Encoding.PEM).count(b"BEGIN") == 1
