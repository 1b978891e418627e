"""Attacks on a secret that goes to one host: to have it, and to have it go elsewhere."""

from base64 import b64encode
from urllib.parse import quote

from corral.testing.attack.arena import HOST, Arena, Attack, SkippedError, expect, need, status
from corral.testing.attack.loot import forms, masked

_FIELD = "Private-Token"
_ROOTS = ("/etc", "/home", "/run", "/tmp", "/dev/shm")  # noqa: S108 - places to search


def _ask(arena: Arena, *requests: tuple[str, str], method: str = "GET", body: str = "") -> list[str]:
    """What comes back to the keeper of requests to the bound host: path, and header fields without the last line's end."""
    port = arena.bound_to.port
    texts = [
        f"{method} {path} HTTP/1.1\r\nHost: {HOST}:{port}\r\n{fields}\r\nConnection: close\r\n\r\n{body}"
        for path, fields in requests
    ]
    place = arena.address_of(arena.keeper, HOST)
    found = arena.net(arena.keeper, *(("raw", place, port, text) for text in texts))
    return ["".join(f"{part['head']}\n\n{part['body']}" for part in answers) for answers in found]


def _works(arena: Arena) -> None:
    """The secret does go where it is bound to: else nothing of it would be seen anywhere."""
    arena.bound_to.take()
    _ask(arena, ("/", f"{_FIELD}: {arena.stand_in}"))
    need(arena.bound_to.saw(arena.kept), "the secret does not work at all")


def _unseen(arena: Arena, texts: list[str], where: str) -> None:
    raw = "\n".join(texts).encode("latin-1", "replace")
    held = [form for form in forms(arena.kept) if form in raw]
    expect(not held, f"the secret came back in {where}: {held[:2]}")


def _echo(arena: Arena) -> str:
    _works(arena)
    texts = _ask(arena, ("/echo", f"{_FIELD}: {arena.stand_in}"))
    _unseen(arena, texts, "an echo")
    need("X-Echo-5" in texts[0] and "Set-Cookie" in texts[0], f"no echo came: {texts[0][:80]}")
    return "taken out of fields, cookies, places, a body in pieces of 5 bytes and what is behind it, in each spelling"


def _basic(arena: Arena) -> str:
    coded = b64encode(f"user:{arena.stand_in}".encode()).decode()
    arena.bound_to.take()
    texts = _ask(arena, ("/echo", f"Authorization: Basic {coded}"))
    sent = b64encode(f"user:{arena.kept}".encode()).decode()
    need(arena.bound_to.saw(sent), "the secret does not go into Basic credentials")
    expect(sent[8:-4] not in texts[0], "Basic credentials came back")
    _unseen(arena, texts, "Basic credentials")
    return "it goes into Basic credentials, and out of those that come back, wherever base64 begins"


def _packed(arena: Arena) -> str:
    fields = f"{_FIELD}: {arena.stand_in}"
    packed, sealed = _ask(
        arena,
        ("/packed", f"{fields}\r\nAccept-Encoding: gzip"),
        ("/sealed", f"{fields}\r\nAccept-Encoding: x-own"),
    )
    _unseen(arena, [packed, sealed], "a compressed answer")
    expect(" 200 " in packed and " 502 " in sealed, f"answered {packed[:20]!r} and {sealed[:20]!r}")
    return "compressed answers are opened and searched; a coding that nobody here can read is answered 502"


def _ranges(arena: Arena) -> str:
    arena.bound_to.take()
    _ask(arena, ("/echo", f"{_FIELD}: {arena.stand_in}\r\nRange: bytes=0-3\r\nIf-Range: x"))
    expect(arena.bound_to.seen and not arena.bound_to.saw("bytes=0-3"), "a part can be asked for")
    return "Range is not passed on to a host that has the secret: it cannot be fetched in pieces"


def _places(arena: Arena) -> str:
    _works(arena)
    stand = arena.stand_in
    arena.bound_to.take()
    body = f"k={stand}"
    _ask(
        arena, (f"/{stand}?k={stand}", "X-Mine: a"), ("/", f"X-Mine: {stand}"), ("/", f"Cookie: k={stand}"),
        ("/", f"User-Agent: {stand}"), ("/", f"Referer: http://x/{stand}"),
    )  # fmt: skip
    _ask(arena, ("/", f"Content-Length: {len(body)}"), method="POST", body=body)
    seen = arena.bound_to.take()
    need(len(seen) == 6, f"only {len(seen)} requests came through")
    expect(
        not any(arena.kept.encode() in one for one in seen), "the secret went into a place that was not named"
    )
    return "it goes into authentication fields only, not into paths, queries, cookies, other fields or bodies"


def _elsewhere(arena: Arena) -> str:
    _works(arena)
    arena.unbound.take(), arena.ruled.take(), arena.bound_to.take()
    place, fields = arena.address_of(arena.keeper, HOST), f"{_FIELD}: {arena.stand_in}\r\n"
    port, other, ruled = arena.bound_to.port, arena.unbound.port, arena.ruled.port
    answers = arena.net(
        arena.keeper,
        ("http", place, other, f"{HOST}:{other}", "/", fields),
        ("http", place, ruled, f"{HOST}:{ruled}", "/api/x", fields),
        ("http", place, port, f"{HOST}:{other}", "/", fields), ("http", place, other, f"{HOST}:{port}", "/", fields),
        ("http", place, port, "evil.example", "/", fields),
    )  # fmt: skip
    statuses = [status(answer) for answer in answers]
    expect(statuses[:2] == [200, 200] and set(statuses[2:]) <= {403, 421}, f"answered {statuses}")
    expect(
        not arena.unbound.saw(arena.kept) and not arena.ruled.saw(arena.kept),
        "the secret went to another port",
    )
    expect(not arena.bound_to.seen, "a request that names another host was passed on")
    return "elsewhere the placeholder stays what it is: two ports got it as text, three that mix hosts were refused"


def _anothers(arena: Arena) -> str:
    other = arena.extra(secrets=(f"{arena.name_of_kept}=KEPT",), allow=(arena.bound_rule,))
    stranger = arena.extra(allow=(arena.bound_rule,))
    expect(
        other.exec("printenv KEPT").stdout.strip() not in ("", arena.stand_in),
        "two sandboxes have one placeholder",
    )
    expect(not stranger.exec("printenv KEPT").stdout, "a sandbox without the secret has its placeholder")
    port, fields = arena.bound_to.port, f"{_FIELD}: {arena.stand_in}\r\n"
    arena.bound_to.take()
    for box in (other, stranger):
        place = arena.address_of(box, HOST)
        [answer] = arena.net(box, ("http", place, port, f"{HOST}:{port}", "/", fields))
        need(status(answer) == 200, f"answered {status(answer)}")
    expect(
        arena.bound_to.saw(arena.stand_in) and not arena.bound_to.saw(arena.kept),
        "another's placeholder works",
    )
    return "each sandbox has its own: another's is text, with the secret and without"


def _lookalikes(arena: Arena) -> str:
    _works(arena)
    arena.bound_to.take()
    stand = arena.stand_in
    likes = (
        "$KEPT",
        "${KEPT}",
        "{{KEPT}}",
        arena.name_of_kept,
        stand[:-1],
        stand[1:],
        stand.upper(),
        stand.swapcase(),
        stand[::-1],
    )
    _ask(arena, *(("/", f"{_FIELD}: {like}") for like in likes))
    need(len(arena.bound_to.seen) == len(likes), "a request did not come through")
    expect(not arena.bound_to.saw(arena.kept), "something like the placeholder was taken for it")
    return f"only the whole random value is exchanged: {len(likes)} that look like it stay as they are"


def _leaks(arena: Arena) -> str:
    raw = arena.kept.encode()
    spelled = (
        arena.kept,
        raw.hex(),
        quote(arena.kept, safe=""),
        b64encode(raw).decode(),
        b64encode(b"ab" + raw).decode(),
    )
    arena.bound_to.take(), arena.unbound.take()
    texts = _ask(
        arena, *(("/", f"X-Note: {one}") for one in spelled), (f"/{quote(arena.kept, safe='')}", "A: b")
    )
    port, place = arena.unbound.port, arena.address_of(arena.keeper, HOST)
    body = f"Content-Length: {len(raw)}\r\n"
    split = (
        f"POST / HTTP/1.1\r\nHost: {HOST}:{port}\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    )
    split += f"8\r\n{arena.kept[:8]}\r\n{len(raw) - 8:x}\r\n{arena.kept[8:]}\r\n0\r\n\r\n"
    whole = f"POST / HTTP/1.1\r\nHost: {HOST}:{port}\r\n{body}Connection: close\r\n\r\n{arena.kept}"
    texts += [
        str(found)
        for found in arena.net(arena.keeper, *(("raw", place, port, text) for text in (split, whole)))
    ]
    told = [number for number, text in enumerate(texts) if "secret-in-request" not in text]
    expect(not told, f"a leaked secret was not refused in spelling {told}")
    seen = b"".join([*arena.bound_to.take(), *arena.unbound.take()])
    expect(not any(form in seen for form in forms(arena.kept)), "a leaked secret has left")
    return f"one that leaked is stopped at the gateway, as it is and in {len(spelled) - 1} codings, in a body cut in two as well"


def _split_fields(arena: Arena) -> str:
    _works(arena)
    arena.bound_to.take()
    stand = arena.stand_in
    odd = (
        f"{stand}\rX-In: 1",
        f"{stand}\nX-In: 1",
        f"{stand}\0X-In: 1",
        f"{stand}%0d%0aX-In: 1",
        f"{stand}\\r\\nX-In: 1",
    )
    _ask(arena, *(("/", f"{_FIELD}: {value}") for value in odd))
    names = [
        line
        for seen in arena.bound_to.take()
        for line in seen.split(b"\r\n")
        if line.lower().startswith(b"x-in")
    ]
    expect(not names, "a placeholder brought a header field of its own")
    return "what stands around a placeholder begins no new field: control characters refused, escapes left as text"


def _search(arena: Arena) -> str:
    _works(arena)
    found = arena.run(arena.keeper, "search", *_ROOTS, data=masked(arena.kept))
    expect(not found, f"the secret is in {found[:5]}")
    return "a secret that goes to a host never enters: not in files, environments, arguments or memory"


def _revoked(arena: Arena) -> str:
    box = arena.extra(secrets=(f"{arena.name_of_kept}=KEPT", arena.loot.secret), allow=(arena.bound_rule,))
    token, place, port = arena.token(box), arena.address_of(box, HOST), arena.bound_to.port
    request = (
        "http",
        place,
        port,
        f"{HOST}:{port}",
        "/",
        f"{_FIELD}: {box.exec('printenv KEPT').stdout.strip()}\r\n",
    )
    [before] = arena.net(box, request)
    if status(before) != 200 or status(arena.ask(box, token, max_tokens=1)) != 200:
        raise SkippedError("the grant does not work to begin with")
    arena.bound_to.take()
    arena.client.revoke_grant(box.id)
    [after] = arena.net(box, request)
    model = status(arena.ask(box, token, max_tokens=1))
    expect(
        status(after) == 403 and model == 403, f"answered {status(after)} and {model} after it was revoked"
    )
    expect(not arena.bound_to.seen, "a request went out after the grant was revoked")
    return "a revoked grant is worth nothing from the next request on: hosts, secrets and models are shut"


ATTACKS = (
    Attack("secret-echo", "G-137, G-138, G-139", "have a host send its secret back in every spelling", _echo),
    Attack("basic-echo", "G-34, G-138", "have Basic credentials sent back", _basic),
    Attack(
        "packed-echo",
        "G-140, G-143",
        "have the secret sent back compressed, and in an unknown coding",
        _packed,
    ),
    Attack("ranges", "G-142", "fetch an echo in pieces", _ranges),
    Attack("places", "G-33", "have the secret put into other places of a request", _places),
    Attack("other-hosts", "G-32, G-47", "have the secret sent to another host or port", _elsewhere),
    Attack("placeholders", "G-15, G-17, G-29", "use another sandbox's placeholder", _anothers),
    Attack("lookalikes", "G-31", "have something like the placeholder exchanged", _lookalikes),
    Attack("secret-search", "G-1", "find a host's secret anywhere inside", _search),
    Attack("leaks", "G-44", "send out a secret that leaked, in every coding", _leaks),
    Attack(
        "split-fields",
        "G-37, G-39",
        "split a header field by what stands around a placeholder",
        _split_fields,
    ),
    Attack("revoked-grant", "G-18, G-333", "go on after the grant was revoked", _revoked),
)
