"""The E2B-compatible API, beside the native one on the same port: a translation, without state of its own but watchers.

Which API a request is for is seen from its head: a request with routing headers is for one sandbox, whatever its path;
paths under `/v1` are the native API's; paths that only E2B knows are the control plane's.
"""

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from corral.api.context import Authenticate
from corral.api.e2b import logs, metrics, pausing, sandboxes, snapshots, tags, templates, volumes
from corral.api.e2b.builds import Builds
from corral.api.e2b.calls import Call, Handler, refusing, route
from corral.api.e2b.dataplane import DataPlane
from corral.api.e2b.failures import Refusal, not_supported
from corral.engine.engine import Engine

_ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("POST", "/sandboxes", sandboxes.create_v1),
    ("POST", "/v2/sandboxes", sandboxes.create_v2),
    ("GET", "/sandboxes", sandboxes.list_v1),
    ("GET", "/v2/sandboxes", sandboxes.list_v2),
    ("GET", "/sandboxes/metrics", metrics.many_metrics),
    ("GET", "/sandboxes/{id}", sandboxes.get),
    ("DELETE", "/sandboxes/{id}", sandboxes.kill),
    ("POST", "/sandboxes/{id}/timeout", sandboxes.set_timeout),
    ("POST", "/sandboxes/{id}/refreshes", sandboxes.refresh),
    ("GET", "/sandboxes/{id}/metrics", metrics.metrics),
    ("GET", "/sandboxes/{id}/logs", logs.logs_v1),
    ("GET", "/v2/sandboxes/{id}/logs", logs.logs_v2),
    ("PUT", "/sandboxes/{id}/network", sandboxes.set_network),
    ("POST", "/sandboxes/{id}/connect", pausing.connect_v1),
    ("POST", "/v2/sandboxes/{id}/connect", pausing.connect_v2),
    ("POST", "/sandboxes/{id}/pause", pausing.pause),
    ("POST", "/sandboxes/{id}/resume", pausing.resume),
    ("POST", "/sandboxes/{id}/fork", pausing.fork),
    ("POST", "/sandboxes/{id}/snapshots", snapshots.create_snapshot),
    ("GET", "/snapshots", snapshots.list_snapshots),
    ("POST", "/volumes", volumes.create),
    ("GET", "/volumes", volumes.list_all),
    ("GET", "/volumes/{id}", volumes.get),
    ("DELETE", "/volumes/{id}", volumes.delete),
    ("GET", "/templates", templates.list_templates),
    ("GET", "/default-templates", templates.list_default_templates),
    ("GET", "/v2/templates", templates.page_templates),
    ("GET", "/templates/aliases/{alias}", templates.get_alias),
    ("POST", "/templates/tags", tags.assign_tags),
    ("DELETE", "/templates/tags", tags.delete_tags),
    ("GET", "/templates/{id}", templates.get_template),
    ("DELETE", "/templates/{id}", templates.delete_template),
    ("PATCH", "/v2/templates/{id}", templates.update_template),
    ("PATCH", "/templates/{id}", templates.update_template_v1),
    ("GET", "/templates/{id}/tags", tags.list_tags),
    ("GET", "/templates/{id}/tags/count", tags.count_tags),
    ("GET", "/templates/{id}/tags/exists", tags.has_tag),
    ("GET", "/templates/{id}/tags/groups", tags.tag_groups),
    ("GET", "/templates/{id}/tags/{tag}/assignments", tags.tag_assignments),
)
_ELSEWHERE = ("teams", "secrets", "api-keys", "access-tokens", "nodes", "admin")
"""First parts of paths that E2B has and Corral has not."""
_OLD = ("instances", "envs")
_UPLOADS = "e2b-uploads"
_SANDBOX_ONLY = ("files", "metrics", "process.Process", "filesystem.Filesystem")
_OWN = frozenset(
    (
        "sandboxes",
        "v2",
        "v3",
        "snapshots",
        "templates",
        "default-templates",
        "health",
        "volumes",
        "volumecontent",
        _UPLOADS,
        *_ELSEWHERE,
        *_OLD,
        *_SANDBOX_ONLY,
    )
)
"""First parts of paths that are not the native API's."""
_ROUTING = frozenset({b"e2b-sandbox-id", b"e2b-sandbox-port"})


def is_e2b(scope: Scope) -> bool:
    """Whether a request is one of E2B's clients, as far as its head tells; a page's question before one counts too."""
    headers = {key for key, _ in scope["headers"]}
    return bool(headers & _ROUTING) or scope["path"].split("/", 2)[1] in _OWN


class E2bApi:
    """ASGI middleware: answers requests of E2B's clients, and passes on all others."""

    def __init__(
        self,
        app: ASGIApp,
        engine: Engine,
        authenticate: Authenticate,
        data: DataPlane,
        domain: str | None,
    ) -> None:
        self.app = app
        self._data = data
        by_path: dict[str, dict[str, Handler]] = {}
        for method, path, handler in _ROUTES:
            by_path.setdefault(path, {})[method] = handler
        builds = Builds(engine)
        for method, path, handler in _build_routes(builds):
            by_path.setdefault(path, {})[method] = handler
        by_path["/{rest:path}"] = {"*": _absent}
        routes = [route(path, handlers, engine, authenticate, domain) for path, handlers in by_path.items()]
        uploads = Route(f"/{_UPLOADS}/{{tenant}}/{{hash}}", refusing(builds.receive), methods=["PUT"])
        content = volumes.Content(engine).routes()
        self._control = Router(
            [Route("/health", _health), uploads, *content, *routes], redirect_slashes=False
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {key for key, _ in scope["headers"]}
        signed = scope["path"] == "/files" and b"signature=" in scope["query_string"]
        if headers & _ROUTING or signed:
            await self._data(scope, receive, send)
        elif is_e2b(scope):
            # On the raw path: an encoded slash is a part of a template's name.
            raw = scope.get("raw_path") or scope["path"].encode("utf-8", "surrogateescape")
            await self._control({**scope, "path": raw.partition(b"?")[0].decode("latin-1")}, receive, send)
        else:
            await self.app(scope, receive, send)


def _build_routes(builds: Builds) -> list[tuple[str, str, Handler]]:
    return [
        ("POST", "/templates", builds.too_old),
        ("POST", "/templates/{id}", builds.too_old),
        ("POST", "/templates/{id}/builds/{build}", builds.too_old),
        ("POST", "/v2/templates", builds.register_v2),
        ("POST", "/v3/templates", builds.register_v3),
        ("GET", "/templates/{id}/files/{hash}", builds.file),
        ("POST", "/v2/templates/{id}/builds/{build}", builds.start),
        ("GET", "/templates/{id}/builds/{build}/status", builds.status),
        ("GET", "/templates/{id}/builds/{build}/logs", builds.logs),
    ]


async def _health(_: Request) -> Response:
    return Response(status_code=204)


async def _absent(call: Call) -> Response:
    """What E2B has and Corral has not, and what neither has."""
    path = call.request.url.path
    first = path.split("/", 2)[1]
    if first in _OLD:
        raise Refusal(400, "this version of the client is too old: update the SDK")
    if first in _SANDBOX_ONLY:
        raise Refusal(400, "missing header: E2b-Sandbox-Id and E2b-Sandbox-Port name the sandbox")
    if first in _ELSEWHERE:
        raise not_supported(f"/{first}")
    return JSONResponse({"code": 404, "message": "there is no such path"}, 404)
