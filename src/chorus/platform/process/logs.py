"""Log lines on stderr, one a record, for people or for machines."""

from __future__ import annotations

import json as json_format
import logging
import sys
import time
from typing import Any

from chorus.errors import ChorusError
from chorus.platform.process.output import survive_lost_output

LEVELS = ("debug", "info", "warning", "error")


class UnknownLevel(ChorusError, ValueError):
    """A log level that there is not: names those that there are."""


def setup(level: str = "info", json: bool = False) -> None:
    """Replaces whatever handlers there were, and makes printing safe. Give fields of their own as
    `extra={"fields": {…}}`.
    """
    if level not in LEVELS:
        raise UnknownLevel(f"log level {level!r} is unknown: use one of {', '.join(LEVELS)}")
    survive_lost_output("stdout", "stderr")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if json else LineFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in ("uvicorn", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
    # Requests are logged once, by the API itself, with their id and figures.
    access = logging.getLogger("uvicorn.access")
    access.handlers.clear()
    access.propagate = False
    for name in ("httpx", "httpcore", "urllib3", "filelock", "asyncio", "grpc", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.WARNING)


class LineFormatter(logging.Formatter):
    """`12:03:04 INFO  chorus.engine  message key=value`"""

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = "WARN" if record.levelno == logging.WARNING else record.levelname
        fields = "".join(f" {name}={_shown(value)}" for name, value in _fields(record).items())
        # A traceback keeps its lines, for people; text from elsewhere cannot forge a record.
        message = record.getMessage().replace("\r", "\\r").replace("\n", "\\n")
        line = f"{clock} {level:<5} {record.name}  {message}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        data: dict[str, Any] = {
            **_fields(record),
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            data["traceback"] = self.formatException(record.exc_info)
        return json_format.dumps(data, ensure_ascii=False, default=str)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return getattr(record, "fields", None) or {}


def _shown(value: Any) -> str:
    text = f"{value:.3g}" if isinstance(value, float) else str(value)
    return json_format.dumps(text, ensure_ascii=False) if not text or any(c in text for c in ' "=\n\r\t') else text
