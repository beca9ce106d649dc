"""Notes what a front end asks of its engine and what it gets, and lets clocks jump. On PYTHONPATH of the processes of
one run only.

In the folder that CHAOS_NOTES names, each process writes a file: a line for every request, as it would be sent, and a
line for everything that whoever asked was given, so that it can be looked at token by token. Streams that go on with
another engine are noted as the parts of a front end above see them: as one. While a file `clock` is there, the time of
day is so many seconds away from what it is.
"""

from __future__ import annotations

import base64
import functools
import json
import os
import runpy
import time
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

FOLDER = Path(os.environ["CHAOS_NOTES"])


@functools.cache
def file() -> TextIO:
    return (FOLDER / f"{os.getpid()}.jsonl").open("a", buffering=1)


def note(**entry: object) -> None:
    file().write(json.dumps(entry) + "\n")


def engine_client(module: ModuleType) -> None:
    stream, to_wire = module.EngineStream, module.request_to_wire
    begin, following = stream.__init__, stream.__anext__

    @functools.wraps(begin)
    def noting(self: Any, *given: Any, **named: Any) -> None:
        begin(self, *given, **named)
        request = next(value for value in (*given, *named.values()) if isinstance(value, module.Request))
        note(id=self.id, request=base64.b64encode(to_wire(request).SerializeToString()).decode())

    @functools.wraps(following)
    async def noting_next(self: Any) -> Any:
        try:
            item = await following(self)
        except StopAsyncIteration:
            raise
        except BaseException as error:
            note(id=self.id, ended=f"{type(error).__name__}: {error}")
            raise
        logprobs = [entry.logprob for entry in item.logprobs]
        note(id=self.id, tokens=item.tokens, finish=item.finish, logprobs=logprobs)
        return item

    stream.__init__, stream.__anext__ = noting, noting_next


_now = time.time


def jumping() -> float:
    try:
        return _now() + float((FOLDER / "clock").read_text())
    except FileNotFoundError:
        return _now()


time.time = jumping
changed_modules = Path(__file__).parents[2] / "support" / "changed_modules.py"
runpy.run_path(str(changed_modules))["install"]({"chorus.serving.engine_link.client": engine_client})
