"""Queries on secrets and API keys. Values are sealed before they reach the database, and opened after."""

import hmac
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, bindparam, delete, insert, select, update

from corral.engine.ports import BrokenSecret, OpenedSecret, OpenedSecrets
from corral.errors import Conflict, HostError, NotFound
from corral.model.binding import Binding
from corral.model.ids import TenantId
from corral.model.secrets import ApiKeyInfo, Identity, Provider, Secret, SecretForm, SecretInfo
from corral.store import schema
from corral.store.codec import decode
from corral.store.keys import Keys
from corral.wire.codec import encode

_secrets, _api_keys = schema.secrets, schema.api_keys
KEY_ID = 12
"""Digits of a key's keyed hash that name it."""
_CHECK = "key_check"
_FIND_KEY = select(_api_keys).where(_api_keys.c.key_hash == bindparam("hash"))


def bind_key(db: Connection, keys: Keys) -> None:
    """Hold the database to the key that it was first opened with. Raises HostError for another one."""
    known = key_check(db)
    if known is None:
        db.execute(insert(schema.installation).values(key=_CHECK, value=keys.check_value()))
    elif not hmac.compare_digest(known, keys.check_value()):
        raise HostError(
            "the key file is not the one that this database was made with", "restore the right key file"
        )


def key_check(db: Connection) -> str | None:
    """The check value of the database's key; None in a new database."""
    return db.scalar(select(schema.installation.c.value).where(schema.installation.c.key == _CHECK))


def put(db: Connection, keys: Keys, secret: OpenedSecret, now: datetime) -> SecretInfo:
    """Add or replace."""
    values = {
        "provider": secret.provider.value,
        "base_url": secret.base_url,
        "sealed": keys.seal(secret),
        "binding": None if secret.binding is None else encode(secret.binding),
        "form": secret.form.value,
        "updated_at": now,
    }
    which = (_secrets.c.tenant == secret.tenant, _secrets.c.name == secret.name)
    created = db.scalar(select(_secrets.c.created_at).where(*which))
    if created is None:
        db.execute(insert(_secrets).values(tenant=secret.tenant, name=secret.name, created_at=now, **values))
    else:
        db.execute(update(_secrets).where(*which).values(**values))
    return SecretInfo(
        secret.tenant,
        secret.name,
        secret.provider,
        secret.base_url,
        created or now,
        now,
        secret.binding,
        secret.form,
    )


def remove(db: Connection, tenant: TenantId, name: str) -> None:
    """Forget a secret."""
    gone = db.execute(delete(_secrets).where(_secrets.c.tenant == tenant, _secrets.c.name == name))
    if gone.rowcount == 0:
        raise NotFound(f"there is no secret {name[:80]!r}", "list what exists: `corral secret ls`")


def infos(db: Connection, tenant: TenantId) -> list[SecretInfo]:
    """What may be shown of a tenant's secrets, by name."""
    query = select(_secrets).where(_secrets.c.tenant == tenant).order_by(_secrets.c.name)
    return [_info(row) for row in db.execute(query)]


def _info(row: Row[Any]) -> SecretInfo:
    tenant = TenantId(row.tenant)
    try:
        provider, binding, form = decode(Provider, row.provider), _binding(row), decode(SecretForm, row.form)
    except HostError:  # an altered row, which does not open either: of no provider and bound to nothing
        return SecretInfo(tenant, row.name, Provider.HOST, "", row.created_at, row.updated_at)
    return SecretInfo(tenant, row.name, provider, row.base_url, row.created_at, row.updated_at, binding, form)


def _binding(row: Row[Any]) -> Binding | None:
    return None if row.binding is None else decode(Binding, row.binding)


def open_all(db: Connection, keys: Keys) -> OpenedSecrets:
    """All secrets of all tenants, decrypted."""
    whole: list[OpenedSecret] = []
    broken: list[BrokenSecret] = []
    for row in db.execute(select(_secrets).order_by(_secrets.c.tenant, _secrets.c.name)):
        try:
            whole.append(_opened(keys, row))
        except HostError as error:
            broken.append(BrokenSecret(TenantId(row.tenant), row.name, error))
    return OpenedSecrets(tuple(whole), tuple(broken))


def _opened(keys: Keys, row: Row[Any]) -> OpenedSecret:
    return keys.unseal(
        TenantId(row.tenant),
        row.name,
        decode(Provider, row.provider),
        row.base_url,
        row.sealed,
        _binding(row),
        decode(SecretForm, row.form),
    )


def add_api_key(
    db: Connection, keys: Keys, tenant: TenantId, label: str, now: datetime
) -> tuple[Secret, ApiKeyInfo]:
    """A new API key, of which only a keyed hash is kept, and what may be shown of it."""
    key = keys.new_api_key()
    key_hash = keys.api_key_hash(key.reveal())
    values = {"key_hash": key_hash, "tenant": tenant, "label": label, "created_at": now}
    db.execute(insert(_api_keys).values(**values))
    return key, ApiKeyInfo(key_hash[:KEY_ID], label, now)


def api_keys(db: Connection, tenant: TenantId) -> list[ApiKeyInfo]:
    """A tenant's, oldest first."""
    query = select(_api_keys).where(_api_keys.c.tenant == tenant).order_by(_api_keys.c.created_at)
    return [_key_info(row) for row in db.execute(query)]


def revoke_api_key(db: Connection, tenant: TenantId, ref: str) -> ApiKeyInfo:
    """Forget the key with this id, or the only one with this label."""
    known = api_keys(db, tenant)
    found = [key for key in known if key.id == ref] or [key for key in known if key.label == ref]
    if not found:
        raise NotFound(f"there is no API key {ref[:80]!r}", "list yours: `corral key ls`")
    if len(found) > 1:
        ids = ", ".join(key.id for key in found)
        raise Conflict(f"{len(found)} API keys have the label {ref[:80]!r}", f"name one by its id: {ids}")
    which = (_api_keys.c.tenant == tenant, _api_keys.c.key_hash.startswith(found[0].id, autoescape=True))
    db.execute(delete(_api_keys).where(*which))
    return found[0]


def identity_of_key(db: Connection, key_hash: str) -> Identity | None:
    """Whose API key has this hash, and which one it is.

    The hash is keyed: how long the index takes to find its neighbours tells a caller nothing about any key.
    """
    row = db.execute(_FIND_KEY, {"hash": key_hash}).first()
    if row is None or not hmac.compare_digest(row.key_hash, key_hash):
        return None
    return Identity(TenantId(row.tenant), _key_info(row))


def _key_info(row: Row[Any]) -> ApiKeyInfo:
    return ApiKeyInfo(row.key_hash[:KEY_ID], row.label, row.created_at)
