"""Attacks on whoever decides: approvals, policy, git."""

import hashlib
import secrets
import zlib
from base64 import b64encode
from pathlib import Path

from corral.errors import CorralError
from corral.testing.attack.arena import GATEWAY, Arena, Attack, SkippedError, expect, need, status

_OWN, _PLAIN = "gateway.corral", "Content-Type: text/plain\r\n"


def _question(text: str) -> str:
    return f"{_PLAIN}Content-Length: {len(text)}\r\n"


def _approve_oneself(arena: Arena) -> str:
    box = arena.extra()
    asking = box.spawn("corral-ask host asked.example.com because")
    pending: list[str] = []
    while not pending and asking.refresh().exit is None:
        pending = [item.id for item in arena.client.list_approvals(box.id, status="pending")]
    need(pending, "the question was not put")
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
    ask = "printf 'protocol=http\\nhost=gateway.corral\\n\\n' | git credential fill | sed -n s/^password=//p"
    token = b64encode(f"corral:{box.exec(ask).stdout.strip()}".encode()).decode()

    def request(repository: str, service: str) -> tuple[object, ...]:
        path = f"/git/git.example/{repository}/info/refs?service={service}"
        return ("http", GATEWAY, 80, _OWN, path, f"Authorization: Basic {token}\r\n")

    own, push, *answers = arena.net(
        box,
        request(f"{name}/app", "git-upload-pack"),
        request(f"{name}/app", "git-receive-pack"),
        *(request(other, "git-upload-pack") for other in others),
    )
    need(status(own) == 502, f"the granted repository was not looked for: {status(own)}")
    expect({status(answer) for answer in answers} <= {400, 403, 404}, "another repository was reached")
    expect(status(push) == 403, f"a repository for reading can be pushed to: {status(push)}")
    none = arena.plain.exec("GIT_TERMINAL_PROMPT=0 git ls-remote https://git.example/x/y", timeout=30)
    expect(none.exit_code != 0, "git reached a host without a rule")
    return f"the repository's exact name is the grant: {len(others)} spellings of others refused, pushes too"


_POISON = """
cd ~/project
run='touch MARK'
echo '* filter=evil diff=evil merge=evil' > .gitattributes
git add -A && git commit -qm two || exit 1
printf '#!/bin/sh\\n%s\\n' "$run" > /tmp/evil; chmod 755 /tmp/evil
for hook in post-checkout pre-commit post-commit pre-push post-update reference-transaction post-index-change upload-pack; do
  cp /tmp/evil .git/hooks/$hook
done
for key in core.fsmonitor core.sshCommand core.pager diff.external diff.evil.textconv diff.evil.command filter.evil.smudge \\
           filter.evil.clean merge.evil.driver gpg.program core.askPass core.alternateRefsCommand; do
  git config "$key" "$run"
done
git config alias.diff "!$run"; git config credential.helper "!$run"; git config log.showSignature true
"""


def _poison(arena: Arena) -> str:
    mark, place = arena.folder / "ran", arena.folder / "project"
    _make_repository(place)
    box = arena.extra(repo=str(place), branch="auto")
    done = box.exec(["bash", "-c", _POISON.replace("MARK", str(mark))])
    pulled = arena.client.pull(box.id)
    b"".join(arena.client.diff(box.id))
    arena.client.receipt(box.id)
    arena.remove(box)
    expect(not mark.exists(), "the host ran a program of the sandbox's repository")
    if done.exit_code != 0 or not pulled:
        raise SkippedError(f"the repository could not be poisoned: {done.stderr.strip()[-200:]}")
    return "its commits were pulled and shown: git of the host reads objects only, no configuration, hook or filter"


def _make_repository(place: Path) -> None:
    """A repository of the host with one commit, as git keeps it."""
    git = place / ".git"
    for folder in ("objects", "refs/heads"):
        (git / folder).mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    (git / "config").write_text("[core]\n\trepositoryformatversion = 0\n")
    who = "a <a@example.com> 0 +0000"
    tree = _put_object(git, "tree", b"")
    commit = f"tree {tree}\nauthor {who}\ncommitter {who}\n\none\n"
    (git / "refs/heads/main").write_text(_put_object(git, "commit", commit.encode()) + "\n")


def _put_object(git: Path, kind: str, content: bytes) -> str:
    data = f"{kind} {len(content)}\0".encode() + content
    name = hashlib.sha1(data, usedforsecurity=False).hexdigest()
    path = git / "objects" / name[:2] / name[2:]
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(zlib.compress(data))
    return name


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
