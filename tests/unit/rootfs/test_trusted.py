"""The layer of certificates."""

import os
from pathlib import Path

from corral.rootfs.records import read_record
from corral.rootfs.trusted import ADDED, BUNDLE, fits, trusted_layer


def test_it_is_made_once_and_readable_by_all(tmp_path: Path) -> None:
    """G-123, G-124."""
    tree = trusted_layer(tmp_path, b"pem")
    assert trusted_layer(tmp_path, b"pem") == tree
    assert trusted_layer(tmp_path, b"other") != tree
    assert (tree / BUNDLE).read_bytes() == (tree / ADDED).read_bytes() == b"pem"
    assert all(Path(folder).stat().st_mode & 0o777 == 0o755 for folder, _, _ in os.walk(tree))
    assert read_record(tree.parent).uid_base == 0
    assert not [item for item in tmp_path.iterdir() if item.name.startswith(".")]


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
