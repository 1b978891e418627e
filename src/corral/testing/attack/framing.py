"""Attacks on how requests and answers are read: what one parser takes for one message and another for two."""

from corral.testing.attack.arena import HOST, Arena, Attack, expect, need, status

_HIDDEN = "GET /hidden HTTP/1.1\r\nHost: host.corral\r\n\r\n"
_REFUSED = {400, 403, 405, 413, 414, 421, 431, 505}


def _host(arena: Arena) -> str:
    return f"{HOST}:{arena.bound_to.port}"


def _refused(arena: Arena, *requests: str, follow: str = _HIDDEN) -> str:
    """Send each with another request behind it: refused once, closed, and nothing of what is behind it goes on."""
    place, port = arena.address_of(arena.keeper, HOST), arena.bound_to.port
    arena.bound_to.take()
    attempts = [
        ("raw", place, port, (request + follow).replace("HOST", _host(arena)), 2) for request in requests
    ]
    for request, answers in zip(requests, arena.net(arena.keeper, *attempts), strict=True):
        statuses = [answer["status"] for answer in answers]
        expect(len(statuses) <= 1 and set(statuses) <= _REFUSED, f"{request[:80]!r} was answered {statuses}")
    expect(not arena.bound_to.saw("/hidden"), "a hidden request has reached the server")
    whole = [seen for seen in arena.bound_to.take() if seen.startswith((b"GET", b"POST"))]
    expect(not whole, f"a request that parsers read differently was passed on: {whole[:1]}")
    return f"{len(requests)} spellings refused, the connection closed, nothing passed on"


def _fields(*fields: str, start: str = "POST / HTTP/1.1", body: str = "0\r\n\r\n") -> tuple[str, ...]:
    return tuple(f"{start}\r\nHost: HOST\r\n{one}\r\n\r\n{body}" for one in fields)


def _lengths(arena: Arena) -> str:
    return _refused(
        arena,
        *_fields(
            "Content-Length: 0\r\nContent-Length: 0", "Content-Length: 5\r\nContent-Length: 6", "Content-Length: 0, 0",
            "Content-Length: +0", "Content-Length: -1", "Content-Length: 1_0", "Content-Length: 0x0",
            "Content-Length: 99999999999999999999", "Content-Length:", "Content-Length: 5 5",
        ),
    )  # fmt: skip


def _codings(arena: Arena) -> str:
    return _refused(
        arena,
        *_fields(
            "Content-Length: 5\r\nTransfer-Encoding: chunked", "Transfer-Encoding: chunked\r\nContent-Length: 0",
            "Transfer-Encoding: xchunked", "Transfer-Encoding: gzip, chunked", "Transfer-Encoding: chunked, identity",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", "Transfer-Encoding:\x0bchunked",
            "Transfer-Encoding : chunked", "Transfer-Encoding: identity", 'Transfer-Encoding: "chunked"',
        ),
    )  # fmt: skip


def _chunks(arena: Arena) -> str:
    bodies = ("zz\r\n\r\n", "+1\r\na\r\n0\r\n\r\n", "0x1\r\na\r\n0\r\n\r\n", "1\na\n0\n\n", "1\r\nab\r\n0\r\n\r\n",
              "-1\r\n\r\n", "fffffffffffffffff\r\na\r\n")  # fmt: skip
    texts = tuple(
        f"POST /chunks HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n{b}" for b in bodies
    )
    return _refused(arena, *texts)


def _line_ends(arena: Arena) -> str:
    return _refused(
        arena, "GET / HTTP/1.1\nHost: HOST\n\n", "GET / HTTP/1.1\r\nHost: HOST\r\nA: b\rc\r\n\r\n",
        *_fields("A: b\0c", "A: b\x01c", "A: b\nHost: other.example", start="GET / HTTP/1.1", body=""),
    )  # fmt: skip


def _names(arena: Arena) -> str:
    return _refused(
        arena,
        *_fields("A: b\r\n c: d", "A: b\r\n\tc", "A : b", "A(b): c", ": c", "abc", "A\xff: b", "A b: c",
                 start="GET / HTTP/1.1", body=""),
        "GET / HTTP/1.1\r\n Host: x\r\nHost: HOST\r\n\r\n",
    )  # fmt: skip


def _hosts(arena: Arena) -> str:
    return _refused(
        arena, "GET / HTTP/1.1\r\n\r\n", "GET / HTTP/1.0\r\n\r\n", "GET / HTTP/1.1\r\nHost: HOST\r\nHost: HOST\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: HOST\r\nhost: other.example\r\n\r\n", "GET / HTTP/1.1\r\nHost:\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: HOST, other.example\r\n\r\n",
    )  # fmt: skip


def _targets(arena: Arena) -> str:
    head = "HTTP/1.1\r\nHost: HOST\r\n\r\n"
    targets = ("GET http://HOST/", "GET http://other.example/", "OPTIONS *", "GET /a#b", "GET HOST", "GET //HOST:80@x/ y",
               "GET ", "GET a", "GET /\x80")  # fmt: skip
    return _refused(arena, *(f"{target} {head}" for target in targets))


def _proxying(arena: Arena) -> str:
    head = "HTTP/1.1\r\nHost: HOST\r\n\r\n"
    return _refused(
        arena,
        f"CONNECT HOST {head}",
        f"CONNECT other.example:443 {head}",
        f"connect HOST {head}",
        f"CONNECT / {head}",
    )


def _connection(arena: Arena) -> str:
    named = ("Host", "Authorization", "Content-Length", "close, Host", "Cookie", "X-API-Key")
    return _refused(arena, *_fields(*(f"Connection: {name}\r\nContent-Length: 0" for name in named), body=""))


def _upgrades(arena: Arena) -> str:
    h2 = "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA"
    return _refused(
        arena,
        *_fields(f"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n{h2}", "Connection: Upgrade\r\nUpgrade: h2c",
                 "Upgrade: own", "Connection: upgrade\r\nUpgrade: TLS/1.2, HTTP/1.1",
                 "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: eA==",
                 start="GET / HTTP/1.1", body=""),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    )  # fmt: skip


def _versions(arena: Arena) -> str:
    return _refused(
        arena, *(f"GET / HTTP/{version}\r\nHost: HOST\r\n\r\n" for version in ("0.9", "1.2", "2.0", "3.0", "11", "1.1x")),
        "GET /\r\n\r\n", "\0\1\2\3\r\n\r\n",
    )  # fmt: skip


def _bombs(arena: Arena) -> str:
    many, long = "".join(f"A{n}: b\r\n" for n in range(250)), "a" * 33_000
    start = "GET / HTTP/1.1\r\nHost: HOST\r\n"
    return _refused(
        arena, f"GET /{'a' * 17_000} HTTP/1.1\r\nHost: HOST\r\n\r\n", f"{start}A: {long}\r\n\r\n", f"{start}{many}\r\n",
        start + "".join(f"A{n}: {long[:30_000]}\r\n" for n in range(3)) + "\r\n", f"{start}{long}: b\r\n\r\n",
    )  # fmt: skip


def _pipelined(arena: Arena) -> str:
    place, port = arena.address_of(arena.keeper, HOST), arena.bound_to.port
    first = f"GET /first HTTP/1.1\r\nHost: {_host(arena)}\r\n\r\n"
    others = ("evil.example", f"{HOST}:{arena.unbound.port}", "gateway.corral", "169.254.169.254")
    arena.bound_to.take(), arena.unbound.take()
    texts = [f"{first}GET /hidden HTTP/1.1\r\nHost: {other}\r\n\r\n" for other in others]
    for answers in arena.net(arena.keeper, *(("raw", place, port, text, 2) for text in texts)):
        statuses = [answer["status"] for answer in answers]
        expect(statuses[:1] == [200] and set(statuses[1:]) <= {403, 421}, f"answered {statuses}")
    reached = arena.bound_to.saw("/hidden") or arena.unbound.saw("/hidden")
    expect(not reached, "a second request went where the first one did not")
    return f"each request of a connection is decided on its own: {len(others)} refused after a good one"


def _own_fields(arena: Arena) -> str:
    given = ("X-Corral-Sandbox: other", "Keep-Alive: 9", "Proxy-Authorization: Basic eA==", "TE: trailers", "X-Hop: 1",
             "Proxy-Connection: keep-alive", "Connection: close, X-Hop")  # fmt: skip
    place = arena.address_of(arena.keeper, HOST)
    arena.bound_to.take()
    fields = "".join(f"{one}\r\n" for one in given)
    [answer] = arena.net(arena.keeper, ("http", place, arena.bound_to.port, _host(arena), "/fields", fields))
    need(status(answer) == 200, f"an ordinary request was answered {status(answer)}")
    names = {line.partition(b":")[0].lower() for line in arena.bound_to.take()[0].split(b"\r\n")[1:]}
    passed = names & {one.partition(":")[0].lower().encode() for one in given[:-1]}
    added = {name for name in names if name.startswith((b"x-forwarded", b"forwarded", b"via", b"x-corral"))}
    expect(not passed and not added, f"passed on or added: {sorted(passed | added)}")
    return "fields of the connection, and the gateway's own, end at the gateway; none is added"


def _spellings(arena: Arena) -> str:
    place, port = arena.address_of(arena.keeper, HOST), arena.bound_to.port
    hosts = ("user@HOST", "HOST%00.evil.example", "HOST/evil.example", "HOST\\evil", "[HOST]", "HOST:0", "HOST:99999",
             "127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "fe80::1%eth0",
             "host..corral", "-host.corral", f"{'a' * 64}.corral", "HOST evil.example")  # fmt: skip
    wanted = [name.replace("HOST", HOST) + ("" if ":" in name else f":{port}") for name in hosts]
    arena.bound_to.take()
    answers = arena.net(arena.keeper, *(("http", place, port, name, "/hidden") for name in wanted))
    statuses = {status(answer) for answer in answers}
    expect(statuses <= {400, 403, 421}, f"answered {sorted(statuses)}")
    expect(not arena.bound_to.seen, f"passed on: {arena.bound_to.seen[:1]}")
    return f"a host has one spelling: {len(hosts)} others refused, addresses in every base too"


def _paths(arena: Arena) -> str:
    place, port = arena.address_of(arena.keeper, HOST), arena.ruled.port
    paths = ("/api/../admin", "/api/./../admin", "/api/%2e%2e/admin", "/api/.%2E/admin", "/api/..;/admin", "/api\\..\\admin",
             "/api/%5c../admin", "/api/%2f../admin", "/api/%00/admin", "/admin", "//api/x", "/API/x", "/api%2fx", "/%61pi/x",
             "/api/x/../../admin")  # fmt: skip
    arena.ruled.take()
    answers = arena.net(arena.keeper, *(("http", place, port, f"{HOST}:{port}", path) for path in paths))
    expect(not arena.ruled.saw("admin HTTP"), "a path beside the rule's has reached the server")
    passed = [path for path, answer in zip(paths, answers, strict=True) if status(answer) == 200]
    expect(set(passed) <= {"/%61pi/x"}, f"passed on: {passed}")
    return f"a path that can be read in two ways is refused, not cleaned: {len(paths)} spellings"


def _methods(arena: Arena) -> str:
    place, port = arena.address_of(arena.keeper, HOST), arena.ruled.port
    arena.ruled.take()
    host, none = f"{HOST}:{port}", "Content-Length: 0\r\n"
    override = tuple(f"{name}: DELETE\r\n" for name in
                     ("X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override", "x-http-method-override"))  # fmt: skip
    attempts: list[tuple[object, ...]] = [
        ("http", place, port, host, "/api/x", none, how)
        for how in ("DELETE", "POST", "get", "PROPFIND", "DELETE ")
    ]
    attempts += [("http", place, port, host, "/api/x", field) for field in override]
    attempts += [("http", place, port, host, "/api/x?_method=DELETE")]
    answers = arena.net(arena.keeper, *attempts)
    expect({status(answer) for answer in answers} <= {400, 403}, f"answered {[status(a) for a in answers]}")
    expect(not arena.ruled.seen, f"passed on: {arena.ruled.seen[:1]}")
    return f"a rule's methods are the request's own: {len(attempts)} others, and fields that name another, refused"


def _bad_answers(arena: Arena) -> str:
    place, port = arena.address_of(arena.keeper, HOST), arena.bound_to.port
    kinds = ("/lengths", "/framings", "/control", "/switch")
    answers = arena.net(arena.keeper, *(("raw", place, port, _get(arena, kind)) for kind in kinds))
    for kind, parts in zip(kinds, answers, strict=True):
        expect(
            [part["status"] for part in parts] == [502], f"{kind} was answered {[p['status'] for p in parts]}"
        )
        expect("hidden" not in parts[0]["body"], f"{kind} brought what was hidden in it")
    return f"two lengths, two framings, control characters, an unasked change of protocol: {len(kinds)} answered 502"


def _get(arena: Arena, path: str, fields: str = "") -> str:
    return f"GET {path} HTTP/1.1\r\nHost: {_host(arena)}\r\n{fields}Connection: close\r\n\r\n"


def _redirects(arena: Arena) -> str:
    place, port = arena.address_of(arena.keeper, HOST), arena.bound_to.port
    to = f"http://127.0.0.1:{arena.trap.tcp_port}/"
    fields = f"Private-Token: {arena.stand_in}\r\nX-To: {to}\r\n"
    [answers] = arena.net(arena.keeper, ("raw", place, port, _get(arena, "/redirect", fields)))
    arena.untouched()
    expect([answer["status"] for answer in answers] == [302], "a redirection was followed")
    return "the gateway follows none, so no secret goes to another place"


def _elsewhere(arena: Arena) -> str:
    place, port = arena.address_of(arena.keeper, HOST), arena.bound_to.port
    [answers] = arena.net(arena.keeper, ("raw", place, port, _get(arena, "/away")))
    need([answer["status"] for answer in answers] == [200], "no answer")
    expect("alt-svc" not in answers[0]["head"].lower(), "an answer invites to another port and protocol")
    return "Alt-Svc is taken out of answers: programs stay where they are read"


def _half(arena: Arena) -> str:
    place, port = arena.address_of(arena.keeper, HOST), arena.bound_to.port
    [answers] = arena.net(arena.keeper, ("raw", place, port, _get(arena, "/cut")))
    ended = any(answer["body"].endswith("0\r\n\r\n") for answer in answers)
    expect(answers and not ended, "an answer that broke off looks complete")
    return "what breaks off upstream breaks off here: no end is made up"


def _slow(arena: Arena) -> str:
    box = arena.keeper
    held = box.spawn(
        ["python3", "-m", "attack.exhaust", "connections", "1500"], cwd="/opt/attack", stdin=True
    )
    first = next(iter(held.output())).text.split()
    try:
        need(first[:1] == ["ready"], f"the flood did not come up: {first}")
        expect(int(first[1]) <= 1100, f"{first[1]} connections are held by one sandbox")
        [answer] = arena.net(arena.plain, ("http", "10.200.0.1", 80, "gateway.corral", "/policy"))
        expect(status(answer) == 200, "another sandbox is no longer served")
    finally:
        held.kill()
    return f"{first[1]} of 1,500 half requests, handshakes and questions held open: another sandbox is served meanwhile"


ATTACKS = (
    Attack("lengths", "G-74", "have a length read in two ways", _lengths),
    Attack("codings", "G-74", "have a transfer coding read in two ways", _codings),
    Attack("chunks", "G-74", "end a body early by the size of a chunk", _chunks),
    Attack("line-ends", "G-74", "split a head by bare line ends and NUL", _line_ends),
    Attack("field-names", "G-74", "fold and misspell header fields", _names),
    Attack("two-hosts", "G-74", "send no Host, or two", _hosts),
    Attack("targets", "G-76", "use other forms of a target", _targets),
    Attack("proxying", "G-76, G-90", "use the gateway as a proxy", _proxying),
    Attack("connection-fields", "G-86", "have fields removed by naming them in Connection", _connection),
    Attack("upgrades", "G-89", "change to a protocol that nobody reads", _upgrades),
    Attack("http-versions", "G-74, G-89", "speak another version of HTTP", _versions),
    Attack("giant-heads", "G-91", "send giant heads", _bombs),
    Attack("pipelining", "G-49, G-96", "hide a request behind an allowed one on its connection", _pipelined),
    Attack("own-fields", "G-85, G-87", "send the gateway's own fields on", _own_fields),
    Attack("host-spellings", "G-51, G-54", "spell a host in every odd way", _spellings),
    Attack("paths", "G-77, G-78, G-80", "leave a rule's path by its spelling", _paths),
    Attack("methods", "G-59, G-60", "use methods that a rule does not list", _methods),
    Attack("bad-answers", "G-75, G-98", "have a server answer in two ways at once", _bad_answers),
    Attack("redirects", "G-58", "have a secret follow a redirection", _redirects),
    Attack("alt-svc", "G-112", "have a program sent to another protocol", _elsewhere),
    Attack("half-answers", "G-102", "have half an answer look whole", _half),
    Attack("held-connections", "G-339, G-340", "hold connections open so that nobody else gets one", _slow),
)
