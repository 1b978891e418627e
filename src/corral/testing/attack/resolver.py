"""Attacks on names: the resolver, and the addresses that stand for names."""

from corral.testing.attack.arena import (
    ALLOWED,
    GATEWAY,
    HOST,
    OTHER,
    Arena,
    Attack,
    expect,
    host_addresses,
    looked_for,
    status,
)

_NXDOMAIN, _REFUSED = 3, 5


def _encrypted(arena: Arena) -> str:
    resolvers = ("8.8.8.8", "1.1.1.1", "9.9.9.9", GATEWAY)
    names = ("dns.google", "cloudflare-dns.com", "one.one.one.one", "dns.quad9.net")
    ports = arena.net(arena.allowed, *(("tcp", address, 853) for address in resolvers))
    hellos = arena.net(arena.allowed, *(("tls", "8.8.8.8", 443, name) for name in names))
    quick = arena.net(
        arena.allowed, *(("udp", address, port) for address in resolvers for port in (443, 853))
    )
    expect(set(ports) == {"ECONNREFUSED"}, f"DNS over TLS is open: {ports}")
    expect("ok" not in hellos, f"DNS over HTTPS is open: {hellos}")
    expect("reply" not in quick, "DNS over QUIC was answered")
    return "DNS over TLS, HTTPS and QUIC: closed ports, hosts that no rule names, datagrams that go nowhere"


def _malformed(arena: Arena) -> str:
    head = "\x12\x34\x01\x00"
    one, none = "\x00\x01\x00\x00\x00\x00\x00\x00", "\x00\x00\x00\x00\x00\x00\x00\x00"
    odd = (
        head + none, head + "\x00\x02" + one[2:] + "\x01a\x00\x00\x01\x00\x01", head + one + "\xc0\x0c\x00\x01\x00\x01",
        head + one + "\x3f" + "a" * 10, head + one + "\x40a\x00\x00\x01\x00\x01", "", "x", head, head + one,
        head + one + "\x01\x00\x00\x00\x01\x00\x01", head + one + ("\x3f" + "a" * 63) * 5 + "\x00\x00\x01\x00\x01",
        "\x12\x34\x81\x00" + one + "\x01a\x00\x00\x01\x00\x01", "\x12\x34\x29\x00" + one + "\x01a\x00\x00\x01\x00\x01",
    )  # fmt: skip
    arena.net(arena.allowed, *(("datagram", GATEWAY, 53, text) for text in odd))
    [after] = arena.net(arena.allowed, ("dns", GATEWAY, OTHER))
    expect(after.get("answers") == 1, f"names are no longer resolved: {after}")
    return f"{len(odd)} malformed questions (loops, cuts, two or no questions): the resolver goes on answering others"


def _wildcards(arena: Arena) -> str:
    names = (
        "wild.example",
        "evilwild.example",
        "wild.example.evil.example",
        "a.wild.example.",
        "a.wild.exampl",
        "example",
    )
    answers = arena.net(arena.allowed, *(("dns", GATEWAY, name.removesuffix(".")) for name in names))
    codes = [answer.get("code") for answer in answers]
    expect(codes == [_NXDOMAIN] * 3 + [0] + [_NXDOMAIN] * 2, f"answered {codes}")
    return "*.wild.example is what is below it: not itself, not evilwild.example, not a name that goes on"


def _stand_ins(arena: Arena) -> str:
    known = arena.address_of(arena.allowed, ALLOWED)
    parts = known.split(".")
    near = [".".join([*parts[:3], str((int(parts[3]) + step) % 256)]) for step in range(5, 25)]
    web = arena.net(arena.allowed, *(("http", address, 80, ALLOWED) for address in near))
    own = arena.net(arena.plain, ("http", known, 80, ALLOWED), ("tls", known, 443, ALLOWED))
    served = {status(answer) for answer in web} <= {403, 421} and not any(map(looked_for, web))
    expect(served, "an address that stands for nothing was taken for a name's")
    expect(
        status(own[0]) in (403, 421) and own[1] != "ok", "another sandbox's name was reached by its address"
    )
    return f"addresses stand for one sandbox's own names: {len(near)} near ones and another's refused"


def _local_names(arena: Arena) -> str:
    names = (
        "localhost",
        "x.localhost",
        "gateway.corral",
        HOST,
        "metadata",
        "instance-data",
        "host.docker.internal",
        "wpad",
    )
    answers = [
        answer.get("address", "")
        for answer in arena.net(arena.allowed, *(("dns", GATEWAY, n) for n in names))
    ]
    expect(answers == ["127.0.0.1", "127.0.0.1", GATEWAY, "", "", "", "", ""], f"answered {answers}")
    return "localhost is the sandbox's own; the host's own names are unknown where no rule opens them"


def _flood(arena: Arena) -> str:
    answered = arena.net(arena.allowed, ("questions", GATEWAY, "x.evil.example", 4000))[0]
    [after] = arena.net(arena.plain, ("dns", GATEWAY, "gateway.corral"))
    expect(after.get("answers") == 1, "another sandbox's names are no longer resolved")
    before, recorded = -1, 0
    while before < recorded:
        before, recorded = recorded, _recorded(arena, "x.evil.example")
    expect(recorded < 1000, f"each question is kept: {recorded} records")
    return (
        f"{answered} answers to 4,000 questions, {recorded} records: another sandbox's are answered meanwhile"
    )


def _recorded(arena: Arena, host: str) -> int:
    """How often the audit log names a host."""
    after, found = 0, 0
    while page := arena.client.read_audit(arena.allowed.id, after=after):
        found += sum(item.detail.get("host") == host for item in page)
        after = page[-1].sequence
    return found


def _hosts_file(arena: Arena) -> str:
    port = arena.trap.tcp_port
    box = arena.extra(allow=(f"{ALLOWED}:{port}",))
    for own in host_addresses():
        box.exec(f"echo '{own} {ALLOWED}' >> /etc/hosts; true", user="root")
        answer, handshake = arena.net(
            box, ("http", own, port, f"{ALLOWED}:{port}"), ("tls", own, port, ALLOWED)
        )
        arena.untouched()
        expect(status(answer) in (403, 421), f"an own entry decided: {answer}")
        expect(handshake != "ok", "a handshake went to an address of one's own choice")
    return "the gateway looks up by itself what a request names, and dials nothing else"


ATTACKS = (
    Attack("encrypted-dns", "G-280", "resolve names by TLS, HTTPS and QUIC", _encrypted),
    Attack("malformed-questions", "G-287", "confuse the resolver by malformed questions", _malformed),
    Attack("wildcards", "G-52", "stretch a wildcard", _wildcards),
    Attack("stand-ins", "G-284", "use addresses that stand for nothing, or for another's names", _stand_ins),
    Attack("local-names", "G-69, G-288, G-289", "resolve the host's own names", _local_names),
    Attack("dns-flood", "G-286, G-330", "keep the resolver from others by a flood of questions", _flood),
    Attack("hosts-file", "G-290", "decide by one's own hosts file where a name leads", _hosts_file),
)
