"""The layer of certificates."""

import json
import os
import ssl
from base64 import b64encode
from pathlib import Path

from corral.rootfs.records import read_record
from corral.rootfs.trusted import ADDED, BUNDLE, CHROME, CHROMIUM, FIREFOX, fits, trusted_layer

PEM = ssl.DER_cert_to_PEM_cert(b"certificate")


def test_it_is_made_once_and_readable_by_all(tmp_path: Path) -> None:
    """G-123, G-124."""
    tree = trusted_layer(tmp_path, b"pem", PEM, "/run/own.pem")
    assert trusted_layer(tmp_path, b"pem", PEM, "/run/own.pem") == tree
    assert trusted_layer(tmp_path, b"other", PEM, "/run/own.pem") != tree
    assert (tree / BUNDLE).read_bytes() == (tree / ADDED).read_bytes() == b"pem"
    assert all(Path(folder).stat().st_mode & 0o777 == 0o755 for folder, _, _ in os.walk(tree))
    assert read_record(tree.parent).uid_base == 0
    assert not [item for item in tmp_path.iterdir() if item.name.startswith(".")]


def test_browsers_are_told_by_their_policies(tmp_path: Path) -> None:
    """G-129: the gateway's certificate and nothing else."""
    tree = trusted_layer(tmp_path, b"pem", PEM, "/run/own.pem")
    for name in (CHROMIUM, CHROME):
        assert json.loads((tree / name).read_bytes()) == {
            "CACertificates": [b64encode(b"certificate").decode()]
        }
    firefox = json.loads((tree / FIREFOX).read_bytes())
    assert firefox == {"policies": {"Certificates": {"Install": ["/run/own.pem"]}}}


def test_policies_of_an_image_are_not_hidden(tmp_path: Path) -> None:
    (tmp_path / "etc/firefox/policies").mkdir(parents=True)
    assert fits([tmp_path])
    (tmp_path / FIREFOX).write_text("{}")
    assert not fits([tmp_path])


def test_a_link_in_the_image_is_not_hidden(tmp_path: Path) -> None:
    low, high = tmp_path / "low", tmp_path / "high"
    (low / "etc/ssl/certs").mkdir(parents=True)
    (high / "etc").mkdir(parents=True)
    assert fits([low, high])
    assert fits([tmp_path / "empty"])
    (high / "etc/ssl").symlink_to("pki")
    assert not fits([low, high])
    (high / "etc/ssl").unlink()
    (high / "etc/ssl").write_text("")
    assert not fits([low, high])
