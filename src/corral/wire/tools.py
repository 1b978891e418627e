"""The tools that a request may offer to a model, by their types: a list of those that are open.

Open are tools that the client carries out, and searches, which are priced. A type that is not known may run another model,
make pictures or run code in the same call, at whatever price: it is refused.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from corral.errors import Forbidden
from corral.wire.fields import plainly_spelled

_OWN = frozenset({"function", "custom"})
"""Those that the sandbox describes itself."""
_OF_CLIENT = re.compile(
    r"(?:bash|text_editor|computer|memory|tool_search_tool_regex|tool_search_tool_bm25)_\d{8}"  # Anthropic
    r"|tool_search_tool_regex|tool_search_tool_bm25"
    r"|local_shell|apply_patch|computer|computer_use|computer_use_preview|tool_search"  # OpenAI
    r"|computer[-_]use[-_]preview[-_]\d{4}[-_]\d\d[-_]\d\d"
)
"""Those that the API describes and the client carries out, and the search among a request's own tools."""
_SEARCHES = re.compile(r"web_search(?:_preview)?(?:_\d{4}_?\d\d_?\d\d)?|web_fetch(?:_\d{8})?")
_SHELL = "shell"
_GROUP = "namespace"
_READER = "file-parser"
_OCR = "mistral-ocr"
_FREE_READERS = ("native", "cloudflare-ai", "pdf-text")
_FREE_PLUGINS = frozenset({"web", _READER, "response-healing", "context-compression"})
MAX_RESULTS = 10
"""Results of one search of OpenRouter's, each of which is charged."""
_KNOWN = frozenset({"type", "tools", "environment", "max_uses"})
_MAX_DEPTH = 4
_UNSAID = "what it costs is not in the answer"


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that a request offers. `described`: by the API, at a cost in tokens; `searches`: it is charged by use."""

    fields: Mapping[str, Any]
    described: bool = False
    searches: bool = False


@dataclass(frozen=True, slots=True)
class Plugins:
    """`searches`: one may bring what is not in the request. `reads_free`: documents are read by what costs nothing but
    tokens, and not by a service that charges for pages.
    """

    searches: bool
    reads_free: bool


def tools_in(value: object, depth: int = _MAX_DEPTH) -> Iterator[Tool]:
    """The tools of a field `tools`, and those grouped in it. Raises Forbidden for one that is not open, InvalidInput for one
    that can be read in two ways.
    """
    for tool in value if isinstance(value, list) else ():
        if not isinstance(tool, dict):
            continue
        plainly_spelled(tool, _KNOWN)
        if tool.get("type") == _GROUP:
            yield Tool(tool)
            if depth == 0 and tool.get("tools"):
                raise _refused(_GROUP)
            yield from tools_in(tool.get("tools"), depth - 1)
        else:
            yield _tool(tool)


def _tool(tool: Mapping[str, Any]) -> Tool:
    kind = tool.get("type")
    if kind is None:
        return Tool(tool)
    if not isinstance(kind, str):
        raise _refused(str(kind))
    if kind in _OWN:
        return Tool(tool)
    if _SEARCHES.fullmatch(kind):
        return Tool(tool, described=True, searches=True)
    if _OF_CLIENT.fullmatch(kind) or (kind == _SHELL and _is_local(tool.get("environment"))):
        return Tool(tool, described=True)
    raise _refused(kind)


def _is_local(environment: object) -> bool:
    """Whether a shell is the client's: OpenAI has one in containers of its own, too."""
    return isinstance(environment, dict) and environment.get("type") == "local"


def check_plugins(value: object) -> Plugins:
    """What OpenRouter's plugins do in a request. Raises Forbidden for one that is not open."""
    searches, readers = False, list[bool]()
    for plugin in value if isinstance(value, list) else [value] if value else ():
        fields = plugin if isinstance(plugin, dict) else {"id": plugin}
        plainly_spelled(fields, ("id", "pdf", "max_results"))
        name = fields.get("id")
        if not isinstance(name, str) or name not in _FREE_PLUGINS:
            raise _refused_plugin(str(name))
        results = fields.get("max_results")
        if not (results is None or (isinstance(results, int) and results <= MAX_RESULTS)):
            raise Forbidden(
                "that many results of a search are not set aside", f"ask for {MAX_RESULTS} at most"
            )
        if name == _READER:
            readers.append(_reads_free(fields.get("pdf")))
        searches |= name != _READER
    return Plugins(searches, reads_free=bool(readers) and all(readers))


def _reads_free(pdf: object) -> bool:
    if not isinstance(pdf, dict):
        return False
    plainly_spelled(pdf, ("engine",))
    engine = pdf.get("engine")
    if engine not in (None, _OCR, *_FREE_READERS):
        raise _refused_plugin(f"{_READER} by {engine}")
    return engine in _FREE_READERS


def _refused_plugin(name: str) -> Forbidden:
    return Forbidden(f"the plugin {name[:64]!r} is not allowed here: {_UNSAID}", "leave it out of `plugins`")


def _refused(kind: str) -> Forbidden:
    return Forbidden(
        f"the provider's tool {kind[:64]!r} is not allowed here: {_UNSAID}",
        "leave it out of `tools`, and use a tool inside the sandbox",
    )
