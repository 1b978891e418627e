"""The certificate of the API's TLS listener: good for its domain, renewed in time."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from corral.daemon.certificates import Certificate, certificate_for, given_certificate
from corral.errors import InvalidInput

NOW = datetime.now(UTC)


def _trusts(certificate: Certificate, host: str) -> bool:
    """Whether a client that trusts our CA believes in a server of that name."""
    assert certificate.ca is not None
    server, client = (
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER),
        ssl.create_default_context(cafile=certificate.ca),
    )
    server.load_cert_chain(certificate.chain, certificate.key)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(to_client, to_server, server_hostname=host)
    other = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for end in (one, other):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError:
                return False
    return True


def test_it_is_good_for_its_domain(tmp_path: Path) -> None:
    made = certificate_for(tmp_path / "tls", "sandboxes.test", NOW)
    assert _trusts(made, "sandboxes.test")
    assert _trusts(made, "3000-x.sandboxes.test")
    assert not _trusts(made, "example.org")
    assert made.key.stat().st_mode & 0o777 == 0o600


def test_it_is_kept_until_it_is_about_to_end_or_the_domain_changes(tmp_path: Path) -> None:
    first = certificate_for(tmp_path, "sandboxes.test", NOW).chain.read_bytes()
    assert certificate_for(tmp_path, "sandboxes.test", NOW + timedelta(days=300)).chain.read_bytes() == first
    assert certificate_for(tmp_path, "sandboxes.test", NOW + timedelta(days=390)).chain.read_bytes() != first
    assert _trusts(certificate_for(tmp_path, "other.test", NOW), "1-x.other.test")


def test_the_operators_own_is_looked_at(tmp_path: Path) -> None:
    made = certificate_for(tmp_path, "sandboxes.test", NOW)
    assert given_certificate(str(made.chain), str(made.key)).ca is None
    (tmp_path / "wrong").write_text("nothing")
    for chain, key in ((tmp_path / "wrong", made.key), (made.chain, tmp_path / "none")):
        with pytest.raises(InvalidInput):
            given_certificate(str(chain), str(key))
