"""The label of an exported template: it holds all that an image does not, and is not trusted."""

import contextlib
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.engine.ports import ImportedImage
from corral.engine.templates import config_of
from corral.errors import InvalidInput
from corral.model.grants import Alias, ModelLayer, ModelRules
from corral.model.ids import LayerDigest
from corral.model.sandbox import GIB, Limits
from corral.model.service import Service
from corral.model.template import TemplateConfig
from corral.rootfs.label import LABEL, MAX_LABEL, read_label
from corral.rootfs.manifest import parse_config
from corral.rootfs.oci_archive import _image_config

SERVICE = {"name": "web", "command": ["serve"]}
WHOLE = TemplateConfig(
    env={"A": "1"},
    user="root",
    workdir="/w",
    sudo=True,
    start_command=("start",),
    ready_command=("ready",),
    ready_seconds=600.0,
    services=(
        Service("web", ("serve", "ü"), ("ask",), "user", "/srv", {"B": "2"}, 7.5, 2.5),
        Service("other", ("sleep", "inf")),
    ),
    limits=Limits(memory=3 * GIB, cpus=1.5, pids=99, disk=5 * GIB, io_weight=50),
    models=ModelRules(("claude-*",), (Alias("opus", "haiku"),), (ModelLayer(("claude-haiku-*",)),)),
)


def label(**found: Any) -> dict[str, str]:
    return {LABEL: json.dumps(found)}


@pytest.mark.parametrize("config", [WHOLE, TemplateConfig(user="root", workdir="/")])
def test_a_template_that_goes_out_comes_back_whole(config: TemplateConfig) -> None:
    document = _image_config([], config, datetime(2026, 1, 1, tzinfo=UTC))
    read = parse_config(json.dumps(document).encode(), 0)
    layers = (LayerDigest("sha256:" + "1" * 64),)
    image = ImportedImage(layers, read.env, read.user, read.workdir, "sha256:", read.kept)
    assert config_of(image) == config


def test_what_is_too_large_for_a_label_does_not_go_out() -> None:
    large = TemplateConfig(services=(Service("web", ("x" * MAX_LABEL,)),))
    with pytest.raises(InvalidInput, match="label"):
        _image_config([], large, datetime(2026, 1, 1, tzinfo=UTC))


def test_a_label_of_an_older_version_is_read() -> None:
    found = read_label(label(sudo=True, start_command=["a"], ready_command=[]))
    assert found is not None
    assert (found.sudo, found.start_command, found.services) == (True, ("a",), ())
    assert (found.limits, found.models) == (None, None)
    bare = read_label(label())
    assert bare is not None
    assert not bare.sudo
    assert read_label(None) is None
    assert read_label({"maintainer": "x"}) is None


LIMITS = {"memory": GIB, "cpus": 1, "pids": 99, "disk": GIB, "io_weight": 50}


@pytest.mark.parametrize(
    "labels",
    [
        {LABEL: 1}, {LABEL: "{"}, {LABEL: "[]"}, {LABEL: "[" * 100_000}, {LABEL: '"' + "x" * MAX_LABEL + '"'},
        label(start_command="sh"), label(ready_command=["a\0"]),
        label(services={}), label(services=[1]), label(services=[{**SERVICE, "more": 1}]),
        label(services=[{"name": "web"}]), label(services=[{**SERVICE, "name": "../x"}]),
        label(services=[{**SERVICE, "command": []}]), label(services=[{**SERVICE, "command": ["a\0"]}]),
        label(services=[SERVICE, SERVICE]), label(services=[{**SERVICE, "name": f"a{n}"} for n in range(33)]),
        label(services=[{**SERVICE, "user": "$(id)"}]), label(services=[{**SERVICE, "cwd": "relative"}]),
        label(services=[{**SERVICE, "env": {"A=B": "1"}}]), label(services=[{**SERVICE, "env": {"A": 1}}]),
        label(services=[{**SERVICE, "patience": float("nan")}]), label(services=[{**SERVICE, "patience": 0}]),
        label(services=[{**SERVICE, "patience": 10**400}]), label(services=[{**SERVICE, "patience": True}]),
        label(services=[{**SERVICE, "attempt": 0}]), label(services=[{**SERVICE, "attempt": 3601}]),
        label(ready_seconds=0), label(ready_seconds=3601), label(ready_seconds=float("nan")), label(ready_seconds="9"),
        label(limits=[]), label(limits={}), label(limits={**LIMITS, "memory": 1}),
        label(limits={**LIMITS, "cpus": float("inf")}), label(limits={**LIMITS, "pids": 10**4000}),
        label(limits={**LIMITS, "disk": "1"}), label(limits={**LIMITS, "gpus": 1}),
        label(models=[]), label(models={}), label(models={"allow": "*"}), label(models={"allow": ["a b"]}),
        label(models={"allow": ["*"] * 65}), label(models={"allow": ["*"], "deny": ["x"]}),
        label(models={"allow": ["*"], "aliases": [{"asked": "opus", "sent": "gpt-*"}]}),
        label(models={"allow": ["*"], "under": [{"allow": ["a b"]}]}),
        label(models={"allow": ["*"], "under": [{"allow": ["*"]}] * 9}),
    ],
)  # fmt: skip
def test_a_label_that_is_not_whole_is_refused(labels: Any) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_label(labels)
    assert len(refused.value.message) < 400


PATHS = [
    ("start_command",), ("services",), ("services", 0), *(("services", 0, key) for key in ("name", "command", "env", "patience")),
    ("services", 0, "command", 0), ("limits",), *(("limits", key) for key in LIMITS),
    ("models",), ("models", "allow"), ("models", "allow", 0), ("models", "under"), ("models", "under", 0),
]  # fmt: skip
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
junk = scalars | st.lists(scalars, max_size=2) | st.dictionaries(st.text(max_size=5), scalars, max_size=2)


@given(st.sampled_from(PATHS), junk)
def test_any_label_is_read_or_refused(path: tuple[Any, ...], value: Any) -> None:
    document: Any = {
        "start_command": ["a"],
        "services": [{**SERVICE, "env": {}, "patience": 1}],
        "limits": dict(LIMITS),
        "models": {"allow": ["*"], "under": [{"allow": ["*"]}]},
    }
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with contextlib.suppress(InvalidInput):
        read_label(label(**document))
