"""Attacks on whoever decides: approvals, policy, git."""

import contextlib
import secrets

from corral.errors import CorralError
from corral.testing.attack.arena import GATEWAY, Arena, Attack, SkippedError, expect, status

_OWN, _PLAIN = "gateway.corral", "Content-Type: text/plain\r\n"


def _question(text: str) -> str:
    return f"{_PLAIN}Content-Length: {len(text)}\r\n"


def _approve_oneself(arena: Arena) -> str:
    box = arena.extra()
    asking = box.spawn("corral-ask host asked.example.com because")
    pending: list[str] = []
    while not pending and asking.refresh().exit is None:
        pending = [item.id for item in arena.client.list_approvals(box.id, status="pending")]
    expect(pending, "the question was not put")
    id = pending[0]
    places = (
        f"/v1/approvals/{id}/approve",
        f"/ask/approve/{id}",
        f"/ask/{id}",
        f"/ask/../v1/approvals/{id}/approve",
    )
    answers = arena.net(
        box,
        *(
            ("http", GATEWAY, 80, _OWN, path, _PLAIN, how)
            for path in places
            for how in ("POST", "PUT", "GET")
        ),
    )
    found = arena.client.get_approval(id)
    asking.kill()
    expect(found.status == "pending", f"the question became {found.status} from inside")
    expect({status(answer) for answer in answers} <= {400, 404, 405, 429}, "an answer was taken from inside")
    return "answers come over the daemon's API only, which no sandbox reaches"


def _flood_of_questions(arena: Arena) -> str:
    box = arena.extra()
    script = (
        "for i in $(seq 60); do printf 'h%s.example.com\\nwhy' $i | "
        "curl -s -m 1 -o /dev/null --data-binary @- http://gateway.corral/ask/host & done; wait; true"
    )
    box.exec(script, timeout=60)
    asked = arena.client.list_approvals(box.id)
    expect(len(asked) <= 30, f"{len(asked)} questions were put to a person")
    while arena.client.list_approvals(box.id, status="pending"):
        arena.client.health()
    return f"{len(asked)} of 60 questions were put, and withdrawn when nobody waited any more"


def _ask_for_too_much(arena: Arena) -> str:
    wanted = ("169.254.169.254", "metadata.google.internal", "*", "api.openai.com", "127.0.0.1", GATEWAY)
    texts = [f"{what}\nplease" for what in wanted]
    requests = (
        f"POST /ask/host HTTP/1.1\r\nHost: {_OWN}\r\n{_question(text)}Connection: close\r\n\r\n{text}"
        for text in texts
    )
    answers = arena.net(arena.plain, *(("raw", GATEWAY, 80, request) for request in requests))
    said = [answer[0]["body"] for answer in answers if answer]
    expect(len(said) == len(wanted) and all("denied:" in body for body in said), f"answers: {said}")
    return "what no answer could allow reaches no person: metadata, loopback, model APIs, everything at once"


def _own_policy(arena: Arena) -> str:
    before = arena.client.get_sandbox(arena.plain.id).allow
    answers = arena.net(
        arena.plain,
        *(("http", GATEWAY, 80, _OWN, path, "Content-Length: 0\r\n", how) for path in ("/policy", "/denials", "/")
          for how in ("POST", "PUT", "DELETE", "PATCH")),
    )  # fmt: skip
    expect({status(answer) for answer in answers} <= {400, 405}, "a page of the gateway took a change")
    expect(arena.client.get_sandbox(arena.plain.id).allow == before, "the policy has changed")
    return "what a sandbox sees of its policy can be read, and not changed"


def _repositories(arena: Arena) -> str:
    name = f"self-test-{secrets.token_hex(3)}"
    try:
        box = arena.extra(git_repos=(f"git.example/{name}/app",))
    except (CorralError, TypeError) as error:
        raise SkippedError(f"no repository can be granted here: {error}") from None
    others = (
        f"{name}/other", f"{name}/app/../other", f"{name}/app%2f..%2fother", f"{name}/app.git.git", f"other/{name}/app",
        f"{name}//app", f"./{name}/app", f"{name}/app;x", f"{name}/app%00",
    )  # fmt: skip
    query = "info/refs?service=git-upload-pack"
    answers = arena.net(box, *(("http", GATEWAY, 80, _OWN, f"/git/git.example/{o}/{query}") for o in others))
    expect({status(answer) for answer in answers} <= {400, 401, 403, 404}, "another repository was reached")
    [push] = arena.net(
        box, ("http", GATEWAY, 80, _OWN, f"/git/git.example/{name}/app/info/refs?service=git-receive-pack")
    )
    expect(status(push) in (401, 403), f"a repository for reading can be pushed to: {status(push)}")
    none = arena.plain.exec("GIT_TERMINAL_PROMPT=0 git ls-remote https://git.example/x/y", timeout=30)
    expect(none.exit_code != 0, "git reached a host without a rule")
    return f"the repository's exact name is the grant: {len(others)} spellings of others refused, pushes too"


def _poison(arena: Arena) -> str:
    mark = arena.folder / "ran"
    with contextlib.suppress(CorralError):
        arena.plain.exec(
            f"mkdir -p /home/user/r && cd /home/user/r && git init -q . && git config core.fsmonitor 'touch {mark}' && "
            f"printf '#!/bin/sh\\ntouch {mark}\\n' > .git/hooks/pre-commit && chmod +x .git/hooks/pre-commit"
        )
        arena.client.receipt(arena.plain.id)
    expect(not mark.exists(), "the host ran a program of the sandbox's repository")
    return "git of the host is never run on a sandbox's configuration or hooks"


ATTACKS = (
    Attack("own-approval", "G-258, G-321", "answer one's own question", _approve_oneself),
    Attack("question-flood", "G-268", "flood whoever answers with questions", _flood_of_questions),
    Attack("greedy-questions", "G-64, G-185", "ask for what must never be allowed", _ask_for_too_much),
    Attack("own-policy", "G-321", "change one's own policy", _own_policy),
    Attack(
        "repositories",
        "G-231, G-234, G-264",
        "reach repositories that were not granted, and push to one for reading",
        _repositories,
    ),
    Attack("git-hooks", "G-271", "have hooks and monitors run on the host", _poison),
)
