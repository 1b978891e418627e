"""References, manifests and configurations of OCI images, read without I/O. All of it may be hostile."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from corral.errors import CorralError, InvalidInput, TooLarge, Unsupported, UpstreamFailed
from corral.model.ids import check_env, check_guest_path, check_user
from corral.model.template import TemplateConfig
from corral.rootfs.label import read_label

MAX_MANIFEST = 4 << 20
MAX_DOWNLOAD = 20 << 30
"""Bytes of an image's layers as they are sent (compressed)."""
MAX_IMAGE_LAYERS = 125

_HOST = r"(?:[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?)*|\[[0-9a-fA-F:.]+\])"
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    rf"(?P<name>(?:(?P<host>{_HOST}(?::[0-9]{{1,5}})?)/)?(?P<path>{_PART}(?:/{_PART})*))"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_SHA256 = re.compile(r"sha256:[0-9a-f]{64}")
_INDEX_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_MANIFEST_TYPES = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True)
class Reference:
    """Where an image is: `name` is registry and repository, as given; a digest wins over a tag.

    `registry` is the host that is asked, as skopeo reads the name.
    """

    name: str
    tag: str
    digest: str
    loopback: bool
    registry: str

    @classmethod
    def parse(cls, text: str) -> "Reference":
        """Raises InvalidInput for anything but `[host[:port]/]path[:tag][@sha256:…]`."""
        match = _REFERENCE.fullmatch(text) if len(text) <= 512 else None
        if match is None:
            raise InvalidInput(
                f"image reference {text[:120]!r} is not valid",
                "write it as NAME:TAG, HOST/NAME:TAG or HOST/NAME@sha256:DIGEST, without a scheme",
            )
        host = match["host"] or ""
        named = host if set(".:").intersection(host) or host == "localhost" else ""
        registry = named or "docker.io"
        return cls(
            match["name"], match["tag"] or "latest", match["digest"] or "", _is_loopback(host), registry
        )

    def url(self, digest: str = "") -> str:
        """As skopeo wants it; pinned to `digest` where given."""
        digest = digest or self.digest
        return f"docker://{self.name}@{digest}" if digest else f"docker://{self.name}:{self.tag}"


def _is_loopback(host: str) -> bool:
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    return name in ("localhost", "[::1]") or re.fullmatch(r"127(\.[0-9]{1,3}){3}", name) is not None


@dataclass(frozen=True, slots=True)
class Blob:
    """Something of an image, by digest; `size` in bytes as sent."""

    digest: str
    size: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an image consists of, lowest layer first."""

    config: Blob
    layers: tuple[Blob, ...]

    @property
    def size(self) -> int:
        """Bytes to be sent for its layers."""
        return sum(layer.size for layer in self.layers)


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """What Corral honours of an image's configuration, and the digests of its unpacked layers."""

    diff_ids: tuple[str, ...]
    env: dict[str, str]
    user: str
    workdir: str
    kept: TemplateConfig | None = None

    def chain(self) -> tuple[str, ...]:
        """For each layer, the identity (hex) of it and all below it: the specification's chain ids."""
        found: list[str] = []
        for diff_id in self.diff_ids:
            text = f"sha256:{found[-1]} {diff_id}" if found else diff_id
            found.append(
                hashlib.sha256(text.encode()).hexdigest() if found else diff_id.removeprefix("sha256:")
            )
        return tuple(found)


def digest_of(raw: bytes) -> str:
    """The digest of a blob."""
    return f"sha256:{hashlib.sha256(raw).hexdigest()}"


def check_digest(raw: bytes, wanted: str, what: str) -> None:
    """Raises UpstreamFailed if `raw` is not what `wanted` names."""
    if digest_of(raw) != wanted:
        raise UpstreamFailed(f"the registry sent a {what} that does not match its digest", "try again later")


def choose_platform(raw: bytes, machine: str) -> str | None:
    """The digest of the manifest for this machine's kind, of an image index; None if `raw` is a manifest itself.

    Raises Unsupported if the image does not exist for it.
    """
    document = _document(raw)
    if document.get("mediaType") not in _INDEX_TYPES and "manifests" not in document:
        return None
    wanted = ARCHITECTURES.get(machine, machine)
    for entry in _list(document, "manifests", 1000):
        target = entry.get("platform", {}) if isinstance(entry, dict) else {}
        if isinstance(target, dict) and (target.get("os"), target.get("architecture")) == ("linux", wanted):
            return _blob(entry).digest
    raise Unsupported(f"the image does not exist for linux/{wanted}", "choose another image or tag")


def parse_manifest(raw: bytes) -> Manifest:
    """Raises UpstreamFailed for what is none, Unsupported for kinds without layers, TooLarge."""
    document = _document(raw)
    media_type = document.get("mediaType", _MANIFEST_TYPES[0])
    if media_type not in _MANIFEST_TYPES or document.get("schemaVersion") != 2:
        raise Unsupported("the reference does not name a container image", "name an OCI or Docker (v2) image")
    layers = tuple(_blob(entry) for entry in _list(document, "layers", MAX_IMAGE_LAYERS))
    manifest = Manifest(_blob(document.get("config")), layers)
    if manifest.size > MAX_DOWNLOAD or manifest.config.size > MAX_MANIFEST:
        raise TooLarge(
            f"the image's layers have {manifest.size} bytes", f"use an image of at most {MAX_DOWNLOAD}"
        )
    if not layers:
        raise Unsupported("the image has no layers", "name an image with a file system")
    return manifest


def parse_config(raw: bytes, layers: int) -> ImageConfig:
    """Raises UpstreamFailed for a configuration that is malformed or does not fit `layers` layers, InvalidInput
    for a user, directory or label of Corral's own that it cannot take."""
    document = _document(raw)
    rootfs = document.get("rootfs")
    diff_ids = _list(rootfs if isinstance(rootfs, dict) else {}, "diff_ids", MAX_IMAGE_LAYERS)
    if len(diff_ids) != layers or not all(isinstance(d, str) and _SHA256.fullmatch(d) for d in diff_ids):
        raise UpstreamFailed("the image's configuration does not fit its layers", "build the image again")
    config = document.get("config") or {}
    if not isinstance(config, dict):
        raise UpstreamFailed("the image's configuration is malformed", "build the image again")
    return ImageConfig(
        diff_ids=tuple(diff_ids),
        env=_environment(config.get("Env") or []),
        user=_user(config.get("User") or ""),
        workdir=check_guest_path(str(config.get("WorkingDir") or "/")),
        kept=read_label(config.get("Labels")),
    )


def parse_index(raw: bytes) -> str:
    """The digest of the one image of an OCI layout's index. Raises InvalidInput for none, or several."""
    entries = _list(_document(raw), "manifests", 1000)
    if len(entries) != 1:
        raise InvalidInput(f"the archive holds {len(entries)} images", "give one that holds one image")
    return _blob(entries[0]).digest


def parse_docker_manifest(raw: bytes) -> tuple[str, list[str]]:
    """The names of the configuration and the layers of the one image of a `docker save`. Raises InvalidInput."""
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise _malformed() from error
    if not isinstance(document, list) or len(document) != 1 or not isinstance(document[0], dict):
        raise InvalidInput("the archive does not hold exactly one image", "save one image alone")
    config, layers = document[0].get("Config"), _list(document[0], "Layers", MAX_IMAGE_LAYERS)
    if not isinstance(config, str) or not layers or not all(isinstance(name, str) for name in layers):
        raise _malformed()
    return config, list(layers)


def _environment(pairs: Any) -> dict[str, str]:
    """An image's variables. Those whose names no shell could use are left out."""
    env: dict[str, str] = {}
    for pair in pairs if isinstance(pairs, list) else []:
        name, _, value = str(pair).partition("=")
        try:
            env.update(check_env({name: value}))
        except InvalidInput:
            continue
    return check_env(env)


def _user(text: Any) -> str:
    name, _, group = str(text).partition(":")
    if group and not (name.isdecimal() and group.isdecimal()):
        return check_user(name)  # the group by name is that of /etc/passwd nearly always
    return check_user(str(text) or "root")


def _document(raw: bytes) -> Mapping[str, Any]:
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise _malformed() from error
    if not isinstance(document, dict):
        raise _malformed()
    return document


def _list(document: Mapping[str, Any], key: str, limit: int) -> Sequence[Any]:
    value = document.get(key)
    if not isinstance(value, list):
        raise _malformed()
    if len(value) > limit:
        raise TooLarge(f"the image has {len(value)} {key}", f"use an image with at most {limit}")
    return value


def _blob(entry: Any) -> Blob:
    digest, size = (entry.get("digest"), entry.get("size")) if isinstance(entry, dict) else (None, None)
    if not isinstance(digest, str) or not _SHA256.fullmatch(digest) or type(size) is not int or size < 0:
        raise _malformed()
    return Blob(digest, size)


def _malformed() -> CorralError:
    return UpstreamFailed(
        "the registry sent a malformed description of the image", "build or push the image again"
    )
