"""E2B's API under bodies and queries that nobody wrote: each is carried out or refused in the form that clients know, and the
daemon has no failure of its own. The same ones in each run, so that a run tells of the code alone.
"""

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.system.test_e2b_bad_input import Served, served

from corral.protocol.e2b import filesystem, process, sandboxes, templates
from corral.protocol.e2b.base import Wire

__all__ = ["served"]
pytestmark = pytest.mark.root

_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
    | st.sampled_from(["base", "0.0.0.0/0", "../x", "a:b", "/", "\0", "~", "127.0.0.1", "*", "1e999"])
)
_values = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
_UNARY = [
    *(f"process.Process/{name}" for name in ("List", "Update", "SendInput", "SendSignal", "CloseStdin")),
    *(f"filesystem.Filesystem/{name}" for name in ("Stat", "MakeDir", "Move", "ListDir", "GetWatcherEvents")),
]
_CONTROL: list[tuple[str, str, type[Wire]]] = [
    ("POST", "/v2/sandboxes", sandboxes.NewSandbox),
    ("POST", "/sandboxes/{}/timeout", sandboxes.Refresh),
    ("POST", "/sandboxes/{}/refreshes", sandboxes.Refresh),
    ("POST", "/sandboxes/{}/fork", sandboxes.Fork),
    ("PUT", "/sandboxes/{}/network", sandboxes.NetworkUpdate),
    ("POST", "/v3/templates", templates.NewTemplate),
    ("POST", "/templates/tags", templates.AssignTags),
    ("DELETE", "/templates/tags", templates.DeleteTags),
]
_SHAPES: list[type[Wire]] = [
    *(shape for _, _, shape in _CONTROL),
    sandboxes.Network,
    process.StartRequest,
    process.SendInputRequest,
    filesystem.WatchRequest,
    filesystem.MoveRequest,
]
_FIELDS = sorted({field.alias or name for shape in _SHAPES for name, field in shape.model_fields.items()})
_bodies = st.dictionaries(st.sampled_from(_FIELDS), _values, max_size=5) | _values
_fuzz = settings(
    max_examples=40,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
_REFUSED = range(400, 500)


def _check(answer: Any, *fine: int) -> None:
    """It was carried out, or refused with a reason; what Corral has not is refused as that."""
    assert answer.status_code in (*fine, *_REFUSED, 501), answer.text
    if answer.status_code >= 400:
        told = answer.json()
        assert told["message"]
        assert told["code"]


@_fuzz
@given(route=st.sampled_from(_CONTROL), body=_bodies)
def test_bodies_of_the_control_plane(served: Served, route: tuple[str, str, Any], body: Any) -> None:
    method, path, _ = route
    # Another sandbox's end is not put off or brought nearer, nor is it forked: what is there is for the other tests.
    sandbox = served.sandbox if path.endswith("network") else "0" * 16
    answer = served.call(method, path.format(sandbox), json=body)
    _check(answer, 200, 201, 202, 204)
    if path == "/v2/sandboxes" and answer.status_code == 201:
        assert served.call("DELETE", f"/sandboxes/{answer.json()['sandboxID']}").status_code == 204


@_fuzz
@given(
    path=st.sampled_from(["/v2/sandboxes", "/sandboxes", "/snapshots", "/v2/templates", "/sandboxes/{}/metrics",
                          "/sandboxes/{}/logs", "/v2/sandboxes/{}/logs", "/sandboxes/metrics", "/templates/base/tags"]),
    query=st.dictionaries(
        st.sampled_from(["metadata", "state", "order", "startedAfter", "template", "nextToken", "limit", "start", "end",
                         "cursor", "direction", "level", "search", "sandbox_ids", "sandboxID", "name"]),
        st.text(max_size=30) | st.integers(-(2**70), 2**70).map(str), max_size=4,
    ),
)  # fmt: skip
def test_queries_of_the_control_plane(served: Served, path: str, query: dict[str, str]) -> None:
    _check(served.call("GET", path.format(served.sandbox), params=query), 200)


@_fuzz
@given(call=st.sampled_from(_UNARY), body=_bodies)
def test_messages_to_a_sandbox(served: Served, call: str, body: Any) -> None:
    answer = served.box("POST", f"/{call}", json=body)
    # Of a call that fails inside the sandbox, such as input for what has none, the protocol says 500.
    _check(answer, 200, 500)
    if answer.status_code == 500:
        assert answer.json()["code"] == "internal"
        assert "unexpected" not in answer.json()["message"]


@_fuzz
@given(call=st.sampled_from(_UNARY), raw=st.binary(max_size=60))
def test_bytes_in_place_of_messages(served: Served, call: str, raw: bytes) -> None:
    _check(
        served.box("POST", f"/{call}", content=raw, headers={"content-type": "application/proto"}), 200, 500
    )


def test_it_serves_on(served: Served) -> None:
    served.alive()
