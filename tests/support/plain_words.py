"""What a person who reads an answer or a log must never meet: how gRPC tells that a call failed."""

from __future__ import annotations

import re

_GRPCS_WORDS = re.compile(
    r"(?i)unknown:|\bunix:|\bipv[46]:|statuscode|details =|socket closed|errno:|rst_stream|goaway|method not found"
    r"|failed to connect to all|deadline exceeded|message larger than max|exception calling|<class|rendezvous of rpc"
    r"|aiorpcerror|cancelled by application|cancelling all calls|(?-i:\bUNAVAILABLE\b)"
)


def grpcs_words(text: str) -> list[str]:
    """The lines that hold any."""
    return [line for line in text.splitlines() if _GRPCS_WORDS.search(line)]
