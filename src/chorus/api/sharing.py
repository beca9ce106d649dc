"""What a request says about who shares its prompt, and the conversation that it belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from chorus.api.errors import invalid
from chorus.api.fields import Name, RequestBody
from chorus.config.front_end import ApiSettings
from chorus.serving.requests.request import GenerationRequest
from chorus.serving.requests.sharing import LONGEST_NAME, conversation_of, scope_of

# OpenCode's and Claude Code's names for a session.
_HEADERS = ("x-session-affinity", "x-claude-code-session-id")


class SharingFields(RequestBody):
    cache_salt: Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)] | None = None
    """Only requests with the same one share what is kept of their prompts."""
    conversation_id: Name | None = None
    """A client's name for a conversation: what is kept of it goes after everything else."""

    @property
    def conversation_name(self) -> str:
        """OpenAI's own name for it where there is no other."""
        return self.conversation_id or getattr(self, "prompt_cache_key", None) or ""

    @property
    def pins(self) -> bool:
        """Whether the client marked parts of its prompt to be kept."""
        return False


def shared(
    asked: GenerationRequest, body: SharingFields, headers: Mapping[str, str], settings: ApiSettings
) -> GenerationRequest:
    name = body.conversation_name or _session(headers)
    return replace(
        asked,
        scope=scope_of(body.cache_salt or "", asked.owner if settings.cache_per_key else ""),
        conversation=conversation_of(name, asked.owner),
        pinned=body.pins,
    )


def _session(headers: Mapping[str, str]) -> str:
    for header in _HEADERS:
        if name := headers.get(header):
            if len(name) > LONGEST_NAME:
                raise invalid(f"{header}: longer than the {LONGEST_NAME} characters that are accepted.", header)
            return name
    return ""
