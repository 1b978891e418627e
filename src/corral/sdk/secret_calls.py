"""Requests about secrets, prices, and what may be spent."""

import json
from collections.abc import Mapping
from typing import Any

from corral.model.secrets import Provider, SecretForm
from corral.protocol import catalog
from corral.sdk.operations import Call, Event, Follow, Request, build, encode, parse, reply
from corral.sdk.requests import EVENTS, done, get, given, post, url


def list_secrets() -> Call[list[catalog.SecretInfo]]:
    """What may be shown of the tenant's secrets."""
    return Call(get(url("secrets")), lambda body: parse(catalog.SecretList, body).secrets)


def put_secret(
    name: str,
    value: str,
    provider: Provider | str | None = None,
    base_url: str | None = None,
    binding: Mapping[str, Any] | None = None,
    form: SecretForm | str | None = None,
) -> Call[catalog.SecretInfo]:
    """Add or replace a secret. It is encrypted at rest, never shown again, and never enters a sandbox.

    `binding`, in place of a provider, says which hosts get it: `hosts`, and any of the other fields of `BindSecret`.
    `form` says what `value` is: the key itself (`value`), a `command` as a JSON list of words, or the auth.json of a
    `chatgpt` login.
    """
    bound = None if binding is None else build(catalog.BindSecret, **binding)
    body = build(
        catalog.AddSecret,
        name=name,
        value=value,
        **given(provider=provider, base_url=base_url, binding=bound, form=form),
    )
    return Call(
        Request("PUT", url("secrets"), encode(body, value=value), json=True), reply(catalog.SecretInfo)
    )


def rotate_secret(name: str, value: str | None = None) -> Call[catalog.SecretInfo]:
    """Give a secret another value (None: what its command or login gives now), which sandboxes use from their next
    request on.
    """
    body = build(catalog.RotateSecret, value=value)
    content = json.dumps({**body.model_dump(mode="json"), "value": value}).encode()
    return Call(
        Request("POST", url("secrets", name, "rotate"), content, json=True), reply(catalog.SecretInfo)
    )


def remove_secret(name: str) -> Call[None]:
    """Remove a secret; calls that use it are refused from now on."""
    return Call(post(url("secrets", name), method="DELETE"), done)


def list_prices() -> Call[list[catalog.PriceInfo]]:
    """Prices that the operator gave, in millionths of a US dollar per million tokens."""
    return Call(get(url("prices")), lambda body: parse(catalog.PriceList, body).prices)


def set_price(
    secret: str, model: str, *, input: int, output: int, cache_read: int, cache_write: int
) -> Call[None]:
    """Set the price of a model (`*`: of all models of the secret's endpoint)."""
    body = build(
        catalog.SetPrice,
        secret=secret,
        model=model,
        input=input,
        output=output,
        cache_read=cache_read,
        cache_write=cache_write,
    )
    return Call(post(url("prices"), body, "PUT"), done)


def budget(ref: str) -> Call[catalog.Budget]:
    """What a sandbox may spend, has spent, and has set aside; its tenant's accounts included."""
    return Call(get(url("sandboxes", ref, "budget")), reply(catalog.Budget))


def follow_budgets(after: int | None = None, *, wait: bool = True) -> Follow[catalog.BudgetWarning]:
    """Budgets of which 50, 80 or 95 percent come to be spent, without end; without `wait`, what the daemon remembers after
    a sequence number. Who follows counts as somebody who may answer approvals.
    """

    def decode(event: Event) -> catalog.BudgetWarning | None:
        return parse(catalog.BudgetWarning, event.data) if event.name == "budget" else None

    path = url("events", after=after, follow=None if wait else "false")
    return Follow(Request("GET", path, accept=EVENTS), decode)


def set_budget(
    ref: str, cap: int | str | None, *, daily: bool = False, window: str = "total"
) -> Call[catalog.Budget]:
    """Let a sandbox spend `cap` millionths of a US dollar, in all (`total`), per day in UTC (`day`, or `daily`), or in any
    `hour`, `24h` or `week`; None for no cap, `default` for the host's. It holds from the next call on.
    """
    body = build(catalog.SetBudget, cap=cap, window="day" if daily else window)
    return Call(post(url("sandboxes", ref, "budget"), body, "PUT"), reply(catalog.Budget))


def tenant_budget() -> Call[catalog.Budget]:
    """What all of the tenant's sandboxes together may spend, have spent, and have set aside."""
    return Call(get(url("budget")), reply(catalog.Budget))


def set_tenant_budget(
    cap: int | None, *, daily: bool = False, window: str = "total", tenant: str | None = None
) -> Call[catalog.Budget]:
    """Let a tenant (default: one's own) spend `cap` millionths of a US dollar in a window, as for a sandbox; None for no
    cap. Operator only.
    """
    body = build(catalog.SetTenantBudget, cap=cap, window="day" if daily else window, **given(tenant=tenant))
    return Call(post(url("budget"), body, "PUT"), reply(catalog.Budget))
