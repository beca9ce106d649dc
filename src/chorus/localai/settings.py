"""Which of Chorus's settings hold behind LocalAI, and what is said of those that are given and cannot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from chorus.config.sources import LoadedSettings

_OF_API = {
    *("tool_parser", "client_rules", "embeddings", "pooling", "max_tokens", "max_preparing", "max_body_bytes"),
    *("max_messages", "max_choices", "max_logprobs", "max_tools", "max_tools_characters", "max_grammar_characters"),
    *("max_schema_values", "max_nesting", "max_detokenize_tokens", "max_stop_strings", "max_stop_characters"),
    *("max_logit_biases", "max_remembered_answers", "max_remembered_bytes"),
}
"""What of the section `api` holds for requests over gRPC too."""

_WITHOUT_EFFECT = {
    "sampling.temperature": "LocalAI sends a temperature with every request; a model's option temperature fixes one",
    "cache.per_key": "LocalAI's requests come without a key; cache_salt in their metadata keeps them apart",
    "recovery.replan": "no nodes join here; the ranks are those of the hostfile",
}


def without_effect(loaded: LoadedSettings) -> Iterator[str]:
    """One line each for the settings that are given and do nothing here."""
    given = {key: origin for key, origin in loaded.origins.items() if loaded.is_given(key)}
    http = [key for key in given if key.startswith("api.") and key.removeprefix("api.") not in _OF_API]
    if http:
        yield f"{_named(http, given)}: LocalAI is served over gRPC, at --addr, and speaks HTTP itself"
    for key, reason in _WITHOUT_EFFECT.items():
        if key in given:
            yield f"{_named([key], given)}: {reason}"


def _named(keys: Sequence[str], origins: dict[str, str]) -> str:
    listed = ", ".join(f"{key} ({origins[key]})" for key in keys)
    return f"{listed} {'has' if len(keys) == 1 else 'have'} no effect"
