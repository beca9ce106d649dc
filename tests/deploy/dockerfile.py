"""Reads a Dockerfile, and turns its steps into a script that can be run without a container engine."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

PLACES = ("/opt/chorus", "/src", "/data")


@dataclass(frozen=True)
class Step:
    name: str
    rest: str


def read_steps(text: str) -> list[Step]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [Step(*line.split(None, 1)) for line in joined.splitlines() if line.strip()]


def words_of(steps: list[Step], name: str) -> list[str]:
    """The last ENTRYPOINT, CMD or the like, in its list form."""
    rest = next(step.rest for step in reversed(steps) if step.name == name)
    return [str(word) for word in json.loads(rest[rest.index("[") :])]


def script(steps: list[Step], context: Path, root: Path, arguments: dict[str, str]) -> str:
    """What the build would do, with the places of the image under `root`, and owners left as they are."""
    out = ["set -eu"]
    for step in steps:
        rest = _moved(step.rest, root)
        match step.name:
            case "ARG":
                name, _, default = step.rest.partition("=")
                out.append(f"{name}={arguments.get(name, default)}")
            case "ENV":
                out += [f"export {pair}" for pair in rest.split()]
            case "WORKDIR":
                out.append(f"mkdir -p {rest} && cd {rest}")
            case "COPY":
                *sources, target = step.rest.split()
                out += [f"cp -r {context / source} {target}" for source in sources]
            case "RUN":
                # `set -e` forgives what fails before the last `&&`; a builder does not.
                out.append(f"{{ {re.sub(r'chown [^ ]+ ', 'test -d ', rest)}; }} || exit 1")
    return "\n".join(out) + "\n"


def _moved(text: str, root: Path) -> str:
    for place in PLACES:
        text = re.sub(rf"(?<![\w/]){place}(?=[/:\s]|$)", f"{root}{place}", text)
    return text
