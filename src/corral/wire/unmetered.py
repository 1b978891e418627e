"""Fields of model requests that are refused, since by them a call uses what nobody here can tell.

There are three kinds. What names another model than the one that was judged and priced, or leaves the choice to the
provider. What refers to something that the provider keeps: it is not in the request, so it was not judged. And what is
charged for without a bound that a request could be held to, or without a word in the answer.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from corral.errors import Forbidden
from corral.wire.fields import plainly_spelled

_OTHER_MODELS = frozenset(
    {
        "fallbacks", "context_window_fallbacks", "content_policy_fallbacks", "model_list", "router_settings_override",
        "user_config", "compound_custom", "providerOptions", "preset",
    }
)  # fmt: skip
"""Of Anthropic, LiteLLM, Groq, Vercel and OpenRouter."""
_KEPT = frozenset({"previous_response_id", "conversation", "thread", "prompt_id"})
_UNSAID = frozenset(
    {"mcp_servers", "search_parameters", "search_settings", "enable_search", "data_sources", "billing_policy"}
)
_BOUNDLESS = frozenset({"compaction", "multi_agent"})
_UNREAD = frozenset({"extra_body"})
"""Fields that some servers take out of it and put beside the others."""
TOP_LEVEL = _OTHER_MODELS | _KEPT | _UNSAID | _BOUNDLESS | _UNREAD
"""Fields of a whole request that are refused whatever they say."""

_CLEARING = "clear_"
"""Edits of the conversation that only leave parts of it out."""
_MODERATION = ("omni-moderation", "text-moderation")
"""Models that cost nothing."""
_NOTHING: tuple[object, ...] = (None, False, [], {})


def refuse_unmetered(request: Mapping[str, Any]) -> None:
    """Raises Forbidden for a request with such a field, InvalidInput for one that can be read in two ways."""
    for names, refusal in _REFUSALS:
        for name in names:
            if request.get(name) not in _NOTHING:
                raise refusal(name)
    if request.get("background"):
        raise Forbidden("background responses cannot be metered", "leave `background` out")
    if request.get("store") is True:
        raise Forbidden("stored responses are not allowed here", "set `store` to false")
    if isinstance(request.get("prompt"), Mapping):
        raise _kept("prompt")
    _refuse_media(request)
    _refuse_edits(request.get("context_management"))
    _refuse_mode(request.get("reasoning"))
    moderation = request.get("moderation")
    if isinstance(moderation, Mapping) and not str(moderation.get("model")).startswith(_MODERATION):
        raise _other_model("moderation")


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


def _other_model(name: str) -> Forbidden:
    return Forbidden(
        f"`{name}` lets another model run than the one that was checked and priced, so it is not allowed here",
        "leave it out, and name the other model in a call of its own",
    )


def _kept(name: str) -> Forbidden:
    return Forbidden(
        f"`{name}` refers to what the provider keeps, which is not allowed here",
        "send the conversation itself",
    )


def _unsaid(name: str) -> Forbidden:
    return Forbidden(
        f"`{name}` is not allowed here: what it costs is not in the answer",
        "leave it out, and do in the sandbox what it does",
    )


def _boundless(name: str) -> Forbidden:
    return Forbidden(
        f"`{name}` is not allowed here: what it uses has no bound", "do in calls of their own what it does"
    )


def _unread(name: str) -> Forbidden:
    return Forbidden(
        f"`{name}` holds fields that are not read here", "send its fields beside the others, or leave it out"
    )


_REFUSALS: tuple[tuple[frozenset[str], Callable[[str], Forbidden]], ...] = (
    (_OTHER_MODELS, _other_model),
    (_KEPT, _kept),
    (_UNSAID, _unsaid),
    (_BOUNDLESS, _boundless),
    (_UNREAD, _unread),
)


def _dicts(value: object) -> Iterator[Mapping[str, Any]]:
    return (item for item in value if isinstance(item, dict)) if isinstance(value, list) else iter(())
