"""Defences of keys, money, and of whoever decides."""

from tests.removals.removal import Edit, Removal

_INJECT, _OUTBOUND, _BOX = "gateway/inject.py", "gateway/outbound.py", "gateway/box.py"

SECRETS = (
    Removal(
        "a sandbox holds stand-ins of secrets",
        {"key-search": "the key is in", "secret-search": "the secret is in"},
        (
            Edit(
                "agents/service.py",
                "        env = {**bound_environment(named, seed, spec.variables), **env}\n",
                "        env = {**bound_environment(named, seed, spec.variables), **env}\n"
                "        opened = await self._store.open_secrets()\n"
                "        env |= {f'KEY{at}': one.value.reveal() for at, one in enumerate(opened.whole)}\n",
            ),
        ),
    ),
    Removal(
        "secrets are taken out of answers",
        {
            "secret-echo": "an echo",
            "basic-echo": "Basic credentials came back",
            "packed-echo": "a compressed answer",
        },
        (Edit("gateway/forward.py", "        if forms is None:", "        if True:"),),
    ),
    Removal(
        "no part of an answer can be asked for",
        {"ranges": "a part can be asked for"},
        (Edit(_OUTBOUND, 'frozenset({"range", "if-range"})', "frozenset()"),),
    ),
    Removal(
        "a secret goes to the places that it is bound to",
        {"places": "a place that was not named"},
        (Edit(_INJECT, " if name.lower() in names else value)", ")"),),
    ),
    Removal(
        "a secret goes to the hosts that it is bound to",
        {"other-hosts": "another port"},
        (Edit(_BOX, " and one.binding.covers(host, port, tls=tls)", ""),),
    ),
    Removal(
        "each sandbox has placeholders of its own",
        {"placeholders": "two sandboxes have one placeholder"},
        (Edit("policy/placeholder.py", "hmac.digest(seed.encode()", 'hmac.digest(b"one"'),),
    ),
    Removal(
        "another sandbox's placeholder is not taken",
        {"placeholders": "another's placeholder works"},
        (
            # What the gateway takes, whatever it gave out.
            Edit(
                _INJECT,
                "        fields = [\n            (name, _in_field(value, stand, secret)",
                "        fields = [\n            (name, secret",
            ),
        ),
    ),
    Removal(
        "the whole placeholder is exchanged, and nothing like it",
        {"lookalikes": "something like the placeholder was taken for it"},
        (
            Edit(
                _INJECT,
                "        return value.replace(stand, secret)",
                "        return value.replace(stand[:-1], secret)",
            ),
        ),
    ),
    Removal(
        "requests are searched for secrets that leaked",
        {"leaks": "a leaked secret was not refused"},
        (Edit(_OUTBOUND, "        if self._box.tenants_secrets is None:", "        if True:"),),
    ),
    Removal(
        "a grant that is over covers nothing",
        {"revoked-grant": "answered"},
        (
            Edit(
                _BOX,
                "        if self.grant.revoked:\n",
                '        return ""\n        if self.grant.revoked:\n',
            ),
        ),
    ),
    Removal(
        "keys are taken out of a model API's answers",
        {"key-echo": "the key came back"},
        (Edit("gateway/answer.py", "        return self._redactor.feed(chunk)", "        return chunk"),),
    ),
    Removal(
        "a token is one sandbox's",
        {"stolen-token": "another sandbox's token was accepted", "guessed-tokens": "guesses were answered"},
        (Edit(_BOX, "        if token_matches(token, self.grant.token_hash):", "        if True:"),),
    ),
    Removal(
        "a sandbox has the secrets of its grant",
        {"ungranted-key": "a secret was served without a grant"},
        (
            Edit(
                "gateway/vault.py",
                "            for name in sorted(box.secrets)\n"
                "            if (found := self._all.get((box.tenant, name))) and found.spec.binding is None",
                "            for _, name in self._all\n"
                "            if (found := self._all.get((box.tenant, name))) and found.spec.binding is None",
            ),
        ),
    ),
    Removal(
        "endpoints that are metered are open, and no others",
        {"unmetered-calls": "an unmetered endpoint is open"},
        (
            Edit(
                "gateway/endpoints.py",
                "        return Endpoint(rest)\n    return None\n",
                "        return Endpoint(rest)\n    return Endpoint(rest)\n",
            ),
        ),
    ),
    Removal(
        "the worst case is set aside before a call",
        {"budget-race": "overspent"},
        (
            Edit(
                "policy/budget.py",
                "balance.spent + balance.reserved + amount > cap",
                "balance.spent + amount > cap",
            ),
        ),
    ),
    Removal(
        "a call that is given up is charged",
        {"hang-up": "given up, cost"},
        (
            Edit(
                "gateway/metering.py",
                "    if not (counts.input or counts.cache_read or counts.cache_write):",
                "    if outcome.cut:\n        return Counts(), False\n"
                "    if not (counts.input or counts.cache_read or counts.cache_write):",
            ),
        ),
    ),
    Removal(
        "budgets hold",
        {"own-budget": "answers"},
        (Edit("policy/budget.py", "    if amount == 0:", "    if True:"),),
    ),
    Removal(
        "questions have a rate",
        {"question-flood": "questions were put to a person"},
        (
            Edit(
                "gateway/asking.py",
                "if self._waiting >= MAX_WAITING or not self._bucket.take(asyncio.get_running_loop().time()):",
                "if False:",
            ),
            Edit(
                "engine/approvals.py",
                "if refusal := policy.too_many(recent, waiting, now):",
                "if refusal := None:",
            ),
        ),
    ),
    Removal(
        "what no answer could allow is not asked",
        {"greedy-questions": "answers"},
        (Edit("gateway/asking.py", '        if rule.host == "*":', "        if False:"),),
    ),
    Removal(
        "the gateway's pages are read only",
        {"own-policy": "took a change"},
        (
            Edit(
                "gateway/service.py", '        if request.method not in ("GET", "HEAD"):', "        if False:"
            ),
        ),
    ),
    Removal(
        "a repository's exact name is the grant",
        {"repositories": "another repository was reached"},
        (
            Edit(
                "policy/repos.py",
                "if one.host == host and one.path == (plain.lower() if one.fold else plain):",
                "if one.host == host and plain:",
            ),
        ),
    ),
)
