"""Defences of the gateway's HTTP."""

from tests.removals.removal import Edit, Removal

_FRAMING, _FRONT, _FORWARD, _OUTBOUND = (
    "gateway/framing.py",
    "gateway/front.py",
    "gateway/forward.py",
    "gateway/outbound.py",
)
_NO_BODY_CHECK = Edit(
    _FRAMING,
    "    return _check_body(named) or _check_connection(named)",
    "    return _check_connection(named)",
)

# As it reads answers: an LF ends a line, lines may be folded, fields that stand once may stand twice.
_LAX_PARSER = Edit(
    _FRONT,
    "from aiohttp.http_exceptions import LineTooLong\n",
    "from aiohttp import web_protocol\n"
    "from aiohttp.http_exceptions import LineTooLong\n"
    "from aiohttp.http_parser import HttpRequestParserPy\n\n\n"
    "class Lax(HttpRequestParserPy):\n"
    "    lax = True\n\n"
    "    def feed_data(self, data):\n"
    "        return super().feed_data(data, b'\\n')\n\n\n"
    "web_protocol.HttpRequestParser = Lax\n",
)

REQUESTS = (
    Removal(
        "the parser is strict",
        {
            "chunks": "answered",
            "line-ends": "answered",
            "field-names": "answered",
            "split-fields": "a header field of its own",
        },
        (_LAX_PARSER,),
    ),
    Removal(
        "transfer codings are checked",
        {"codings": "answered"},
        (_NO_BODY_CHECK,),
    ),
    Removal(
        "the parser is strict, and lengths and hosts are checked",
        {"lengths": "answered", "two-hosts": "answered", "smuggling": "answered"},
        (_LAX_PARSER, _NO_BODY_CHECK),
    ),
    Removal(
        "targets are paths",
        {"targets": "answered", "proxying": "answered"},
        (Edit(_FRAMING, '    if method == "CONNECT":\n', '    return None\n    if method =="CONNECT":\n'),),
    ),
    Removal(
        "Connection names no field of the message",
        {"connection-fields": "answered"},
        (Edit(_FRAMING, "    if _END_TO_END & _options(named):", "    if False:"),),
    ),
    Removal(
        "no other protocol is changed to",
        {"upgrades": "answered"},
        (Edit(_OUTBOUND, "if upgrade and not head.websocket:", "if False:"),),
    ),
    Removal(
        "the parser is strict, and one version of HTTP is spoken",
        {"http-versions": "answered"},
        (_LAX_PARSER, Edit(_FRAMING, "if version not in ((1, 0), (1, 1)):", "if False:")),
    ),
    Removal(
        "heads have a size",
        {"giant-heads": "answered"},
        (
            Edit(_FRAMING, "MAX_LINE = 16 * 1024", "MAX_LINE = 16 * 1024 * 1024"),
            Edit(_FRAMING, "MAX_FIELD = 32 * 1024", "MAX_FIELD = 32 * 1024 * 1024"),
            Edit(_FRAMING, "MAX_HEAD = 64 * 1024", "MAX_HEAD = 64 * 1024 * 1024"),
            Edit(_FRAMING, "MAX_FIELDS = 200", "MAX_FIELDS = 2000"),
        ),
    ),
    Removal(
        "fields of the connection end at the gateway",
        {"own-fields": "passed on or added"},
        (Edit(_FRAMING, "not in dropped and not lower.startswith(_OWN_PREFIX)", "not in dropped"),),
    ),
    Removal(
        "a path is read in one way",
        {"paths": "a path beside the rule's has reached the server"},
        (
            Edit(
                "policy/paths.py",
                "    if _BAD_ESCAPE.search(path):",
                "    return None\n    if _BAD_ESCAPE.search(path):",
            ),
        ),
    ),
    Removal(
        "a rule's methods are the request's own",
        {"methods": "answered"},
        (Edit(_OUTBOUND, "if _overrides_method(head):", "if False:"),),
    ),
    Removal(
        "the parser of answers is strict, and they are checked",
        {"bad-answers": "was answered"},
        (
            Edit(
                _FORWARD,
                "from aiohttp import hdrs, web\n",
                "from aiohttp import client_proto, hdrs, web\n"
                "from aiohttp.http_parser import HttpResponseParserPy\n\n"
                "client_proto.HttpResponseParser = HttpResponseParserPy\n",
            ),
            Edit(
                _FRAMING,
                "    named = by_name(fields)\n    lengths = {value.strip()",
                "    return None\n    lengths = {value.strip()",
            ),
        ),
    ),
    Removal(
        "redirections are not followed",
        {"redirects": "tcp"},
        (Edit(_FORWARD, "allow_redirects=False", "allow_redirects=True"),),
    ),
    Removal(
        "answers do not invite elsewhere",
        {"alt-svc": "an answer invites to another port and protocol"},
        (Edit(_FORWARD, ' if name.lower() != "alt-svc"]', "]"),),
    ),
    Removal(
        "half an answer has no end",
        {"half-answers": "looks complete"},
        (Edit(_FORWARD, "        cut(request)\n        return\n", "        pass\n"),),
    ),
    Removal(
        "a sandbox has so many connections",
        {"held-connections": "connections"},
        (Edit("gateway/box.py", "MAX_CONNECTIONS = 1024", "MAX_CONNECTIONS = 1_000_000"),),
    ),
)
