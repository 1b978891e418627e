"""What a gateway process is told of a sandbox, kept so that the next one can be told it too."""

from dataclasses import dataclass

from corral.engine.ports import Attachment, Listener
from corral.errors import InvalidInput
from corral.gateway.channel import Channel
from corral.model.grants import Grant
from corral.wire import link


@dataclass(eq=False, slots=True)
class Kept:
    """A sandbox that is to be served, and the channel whose gateway serves it."""

    attachment: Attachment
    listeners: tuple[Listener, ...]
    served_by: Channel | None = None

    def message(self, seq: int) -> link.Attach:
        a = self.attachment
        specs = tuple(link.ListenerSpec(listener.kind.value, listener.port) for listener in self.listeners)
        return link.Attach(
            seq, a.sandbox, a.tenant, a.name, grant_spec(a.grant), a.egress, a.seed, a.repos, a.push, a.route, specs
        )  # fmt: skip

    def close(self) -> None:
        for listener in self.listeners:
            listener.sock.close()


def grant_spec(grant: Grant) -> link.GrantSpec:
    """A grant as it is told."""
    return link.GrantSpec(
        grant.token_hash,
        grant.secrets,
        grant.models,
        grant.expires_at,
        grant.former_hash,
        grant.former_until,
        grant.revoked_at is not None,
    )


def too_many(sockets: int) -> InvalidInput:
    """A sandbox's policy names more ports than one message carries sockets."""
    return InvalidInput(
        f"{sockets} listening sockets are too many",
        f"let the policy's rules name at most {link.MAX_LISTENERS - 4} different ports",
    )
