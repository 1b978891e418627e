"""Attacks on keys and money."""

import json

from corral.testing.attack.arena import GATEWAY, WORST, Arena, Attack, SkippedError, expect, need, status

_ROOTS = ("/etc", "/home", "/opt", "/root", "/run", "/tmp", "/var", "/dev/shm")  # noqa: S108 - places to search


def _search(arena: Arena) -> str:
    box = arena.granted
    need(status(arena.ask(box, arena.token(box), max_tokens=1)) == 200, "the key does not work at all")
    found = arena.run(box, "search", *_ROOTS, data=arena.loot.masked())
    expect(not found, f"the key is in {found[:5]}")
    return "the key never enters: not in files, environments, arguments or memory of any process"


def _echo(arena: Arena) -> str:
    box = arena.granted
    token = arena.token(box)
    for how in ("body", "stream", "error"):
        answer = arena.ask(box, token, metadata={"echo": how}, stream=how == "stream")
        text = json.dumps(answer, ensure_ascii=False) + answer["body"]
        need(answer["head"], f"no answer to {how}")
        expect(not arena.loot.seen_in(text), f"the key came back in a {how}")
        expect("redacted" in text, f"nothing was taken out of a {how}")
    return "taken out of headers, bodies, events and errors: plain, base64, URL, JSON, hexadecimal, in pieces of 7 bytes"


def _stolen_token(arena: Arena) -> str:
    stolen, own, thief = arena.token(arena.neighbour), arena.token(arena.granted), arena.granted
    expect(stolen and stolen != own, "two sandboxes have one token")
    expect(status(arena.ask(thief, stolen)) == 401, "another sandbox's token was accepted")
    fields = (
        f"Authorization: Bearer {stolen}", f"X-Goog-Api-Key: {stolen}",
        f"x-api-key: {own}\r\nAuthorization: Bearer {stolen}",
    )  # fmt: skip
    path = f"/s/{arena.loot.secret}/v1/models"
    answers = arena.net(thief, *(("http", GATEWAY, 80, "gateway.corral", path, f + "\r\n") for f in fields))
    expect({status(answer) for answer in answers} == {401}, "accepted in another header")
    return "the socket says which sandbox asks; a token of another one is refused"


def _guess_tokens(arena: Arena) -> str:
    box = arena.extra(secrets=(arena.loot.secret,))
    right = arena.token(box)
    text = (
        f"GET /s/{arena.loot.secret}/v1/models HTTP/1.1\r\nHost: gateway.corral\r\nx-api-key: guess\r\n"
        "Connection: close\r\n\r\n"
    )
    answers = arena.net(box, *(("raw", GATEWAY, 80, text) for _ in range(60)))
    statuses = {answer[0]["status"] for answer in answers if answer}
    expect(statuses <= {401, 429} and 429 in statuses, f"guesses were answered {sorted(statuses)}")
    expect(status(arena.ask(box, right, max_tokens=1)) == 200, "the right token no longer works")
    return "wrong tokens are slowed down (429), and recorded; the right one works all the same"


def _ungranted(arena: Arena) -> str:
    name = arena.loot.secret
    names = (
        name,
        name.upper(),
        f"{name}%2f",
        f"../s/{name}",
        f"%{ord(name[0]):x}{name[1:]}",
        f"{name}/../{name}",
    )
    answers = arena.net(
        arena.plain, *(("http", GATEWAY, 80, "gateway.corral", f"/s/{n}/v1/models") for n in names)
    )
    expect({status(answer) for answer in answers} <= {400, 403, 404}, "a secret was served without a grant")
    [policy] = arena.net(arena.plain, ("http", GATEWAY, 80, "gateway.corral", "/policy"))
    expect(name not in policy["body"], "a secret is named to a sandbox without a grant")
    return "a sandbox without a grant has no secret, and is told of none"


def _unmetered(arena: Arena) -> str:
    box = arena.granted
    field = f"x-api-key: {arena.token(box)}\r\n"
    paths = (
        "/v1/files", "/v1/organizations/usage", "/v1/messages/batches", "/v1/../admin", "/v1/%2e%2e/admin", "//v1/files",
        "/v1/models/../files", "/v1/models/..%2ffiles", "/v1/messages;x", "/v1/messages%00",
    )  # fmt: skip
    place = f"/s/{arena.loot.secret}"
    answers = arena.net(box, *(("http", GATEWAY, 80, "gateway.corral", place + p, field) for p in paths))
    expect({status(answer) for answer in answers} <= {400, 403, 404, 405}, "an unmetered endpoint is open")
    return f"only endpoints that are metered are open: {len(paths)} spellings of others refused"


def _race(arena: Arena) -> str:
    box, before = arena.extra(secrets=(arena.loot.secret,), budget=5 * WORST), arena.loot.calls
    statuses = arena.flood(box, 100, 50)
    expect(set(statuses) <= {"200", "402", "429"} and statuses["200"], f"answers: {dict(statuses)}")
    expect(arena.loot.calls - before == statuses["200"], "a call was made that was answered as refused")
    account = arena.client.budget(box.id).accounts[0]
    over = account.spent + account.reserved - 5 * WORST
    expect(over <= 0, f"overspent by {over} millionths of a dollar")
    return f"the worst case is set aside before a call: {statuses['200']} made, {statuses['402']} refused, overspent 0"


def _hang_up(arena: Arena) -> str:
    box, before = arena.extra(secrets=(arena.loot.secret,), budget=5 * WORST), arena.loot.calls
    statuses = arena.flood(box, 24, 2, "--max-time 0.2")
    # One that is given up before it has left the sandbox was not made, and costs nothing.
    made = arena.loot.calls - before
    while (account := arena.client.budget(box.id).accounts[0]).reserved:
        arena.client.health()
    if not made or not statuses["000"]:
        raise SkippedError("no call was both made and given up here")
    expect(account.spent >= made * 4096 * 3, f"{made} calls, given up, cost {account.spent} in all")
    expect(account.spent <= 5 * WORST, "overspent")
    return "a call that is given up before its usage comes is charged, and stopped by the budget"


def _raise_budget(arena: Arena) -> str:
    box, before = arena.extra(secrets=(arena.loot.secret,), budget=0), arena.loot.calls
    paths = ("/v1/budget", "/budget", f"/v1/sandboxes/{box.id}/budget", f"/s/{arena.loot.secret}/v1/budget")
    kind = "Content-Type: application/json\r\n"
    answers = arena.net(box, *(("http", GATEWAY, 80, "gateway.corral", p, kind, "PUT") for p in paths))
    expect({status(a) for a in answers} <= {400, 401, 403, 404, 405}, "a budget was set from inside")
    refused = arena.flood(box, 2, 1, "-H 'x-corral-budget: 100'")
    expect(set(refused) == {"402"}, f"answers: {dict(refused)}")
    expect(arena.client.budget(box.id).accounts[0].cap == 0, "the cap has changed")
    expect(arena.loot.calls == before, "a call was made")
    return "only the host sets budgets; no path, field or header of a sandbox does"


ATTACKS = (
    Attack("key-search", "G-1", "find the key anywhere inside, as root, after using it", _search),
    Attack("key-echo", "G-137", "have the provider send the key back", _echo),
    Attack("stolen-token", "G-15, G-19", "use another sandbox's token", _stolen_token),
    Attack("guessed-tokens", "G-24", "guess tokens", _guess_tokens),
    Attack("ungranted-key", "G-17", "use a secret that was not granted", _ungranted),
    Attack("unmetered-calls", "G-178 to G-187", "use the key for what is not metered", _unmetered),
    Attack("budget-race", "G-211", "spend more than the budget by 100 calls at once (race)", _race),
    Attack("hang-up", "G-201, G-214", "spend without paying by hanging up early", _hang_up),
    Attack("own-budget", "G-321", "raise one's own budget", _raise_budget),
)
