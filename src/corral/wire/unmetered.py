"""Fields of model requests that are refused, since by them a call uses what nobody here can tell.

There are three kinds. What names another model than the one that was judged and priced, or leaves the choice to the
provider. What refers to something that the provider keeps: it is not in the request, so it was not judged. And what is
charged for without a bound that a request could be held to, or without a word in the answer.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from corral.errors import Forbidden
from corral.wire.fields import plainly_spelled


@dataclass(frozen=True, slots=True)
class _Kind:
    """Fields that are refused for one reason."""

    names: frozenset[str]
    why: str
    hint: str

    def refusal(self, name: str) -> Forbidden:
        return Forbidden(f"`{name}` {self.why}", self.hint)


_OTHER_MODELS = _Kind(  # of Anthropic, LiteLLM, Groq, Vercel and OpenRouter
    frozenset(
        {
            "fallbacks", "context_window_fallbacks", "content_policy_fallbacks", "model_list", "router_settings_override",
            "user_config", "compound_custom", "providerOptions", "preset",
        }
    ),
    "lets another model run than the one that was checked and priced, so it is not allowed here",
    "leave it out, and name the other model in a call of its own",
)  # fmt: skip
_KEPT = _Kind(
    frozenset({"previous_response_id", "conversation", "thread", "prompt_id"}),
    "refers to what the provider keeps, which is not allowed here",
    "send the conversation itself",
)
_UNSAID = _Kind(
    frozenset(
        {
            "mcp_servers",
            "search_parameters",
            "search_settings",
            "enable_search",
            "data_sources",
            "billing_policy",
        }
    ),
    "is not allowed here: what it costs is not in the answer",
    "leave it out, and do in the sandbox what it does",
)
_BOUNDLESS = _Kind(
    frozenset({"compaction", "multi_agent"}),
    "is not allowed here: what it uses has no bound",
    "do in calls of their own what it does",
)
_UNREAD = _Kind(  # some servers take fields out of it and put them beside the others
    frozenset({"extra_body"}),
    "holds fields that are not read here",
    "send its fields beside the others, or leave it out",
)
_KINDS = (_OTHER_MODELS, _KEPT, _UNSAID, _BOUNDLESS, _UNREAD)
TOP_LEVEL = frozenset().union(*(kind.names for kind in _KINDS))
"""Fields of a whole request that are refused whatever they say."""

_CLEARING = "clear_"
"""Edits of the conversation that only leave parts of it out."""
_MODERATION = ("omni-moderation", "text-moderation")
"""Models that cost nothing."""
_NOTHING: tuple[object, ...] = (None, False, [], {})


def refuse_unmetered(request: Mapping[str, Any]) -> None:
    """Raises Forbidden for a request with such a field, InvalidInput for one that can be read in two ways."""
    for kind in _KINDS:
        for name in kind.names:
            if request.get(name) not in _NOTHING:
                raise kind.refusal(name)
    if request.get("background"):
        raise Forbidden("background responses cannot be metered", "leave `background` out")
    if request.get("store") is True:
        raise Forbidden("stored responses are not allowed here", "set `store` to false")
    if isinstance(request.get("prompt"), Mapping):
        raise _KEPT.refusal("prompt")
    _refuse_media(request)
    _refuse_edits(request.get("context_management"))
    _refuse_mode(request.get("reasoning"))
    moderation = request.get("moderation")
    if isinstance(moderation, Mapping) and not str(moderation.get("model")).startswith(_MODERATION):
        raise _OTHER_MODELS.refusal("moderation")


def _refuse_media(request: Mapping[str, Any]) -> None:
    modalities = request.get("modalities")
    wanted = {str(one) for one in modalities} if isinstance(modalities, list) else set()
    if wanted - {"text"} or request.get("audio") is not None:
        raise Forbidden("audio and pictures that a model makes cannot be metered", "ask for text")


def _refuse_edits(management: object) -> None:
    """A summary that the provider makes on the way is a call of its own, as long as all that came before."""
    if isinstance(management, dict):
        plainly_spelled(management, ("edits",))
    edits = management.get("edits") if isinstance(management, dict) else management
    for edit in _dicts(edits if isinstance(edits, list) else [edits]):
        plainly_spelled(edit, ("type",))
        if not str(edit.get("type")).startswith(_CLEARING):
            raise Forbidden(
                f"the edit {str(edit.get('type'))[:64]!r} of `context_management` is not allowed here: what it uses has no bound",
                "sum up the conversation in a call of its own",
            )


def _refuse_mode(reasoning: object) -> None:
    """In the mode `pro` a model thinks several times over, or another model does."""
    if not isinstance(reasoning, Mapping):
        return
    plainly_spelled(reasoning, ("mode",))
    if reasoning.get("mode") not in (None, "standard"):
        raise Forbidden(
            f"the mode {str(reasoning['mode'])[:64]!r} of `reasoning` is not allowed here: what it uses has no bound",
            "leave `mode` out, and name the model that shall run",
        )


def _dicts(value: object) -> Iterator[Mapping[str, Any]]:
    return (item for item in value if isinstance(item, dict)) if isinstance(value, list) else iter(())
