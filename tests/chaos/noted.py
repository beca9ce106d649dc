"""What front ends noted of their requests (`tap/sitecustomize.py`), read again."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from pathlib import Path

from chorus.messages.engine import Finish, Request, request_from_wire
from chorus.messages.proto import engine_pb2 as pb


@dataclass
class Noted:
    """One request as its front end asked it, and what it was given."""

    request: Request
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: Finish | None = None
    ended: str = ""
    """The error that ended it."""

    @property
    def id(self) -> str:
        """As the client named it: front ends put a number before it."""
        return self.request.id.partition(":")[2]

    @property
    def seed(self) -> str:
        """As clients name it that have no names for requests."""
        return f"seed-{self.request.sampling.seed}"

    def problem(self) -> str | None:
        """Whether its end and its length belong together."""
        match self.finish:
            case Finish.LENGTH if len(self.tokens) != self.request.max_tokens:
                return f"it ended with {len(self.tokens)} tokens, at a length of {self.request.max_tokens}"
            case Finish.STOP | Finish.LENGTH | Finish.CANCELLED:
                return None
            case _:
                return f"it ended with {self.finish} ({self.ended or 'no error'})"


def read(folder: Path) -> list[Noted]:
    return [noted for file in sorted(folder.glob("*.jsonl")) for noted in _of_process(file)]


def _of_process(file: Path) -> list[Noted]:
    found: dict[str, Noted] = {}
    for line in file.read_text().splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue  # the process was killed while it wrote
        if "request" in entry:
            submit = pb.Submit.FromString(base64.b64decode(entry["request"]))
            found[entry["id"]] = Noted(request_from_wire(submit))
            continue
        noted = found[entry["id"]]
        if "ended" in entry:
            noted.ended = entry["ended"]
        else:
            noted.tokens += entry["tokens"]
            noted.logprobs += entry["logprobs"]
            noted.finish = Finish(entry["finish"]) if entry["finish"] else None
    return list(found.values())
