"""`python -m tests.surface` records Chorus's public surface beside this file, or in a FOLDER that it is given.

Recorded is what others rely on: the API's description, every command's help, the settings and their defaults, and the
numbers in the protocols. Whatever depends on the machine is kept out: no environment, an empty home, a fixed width.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
WIDTH = 120
# No setting's line is folded at this width.
TABLE_WIDTH = 400


def main() -> None:
    target = Path(sys.argv[1] if len(sys.argv) > 1 else HERE).resolve()
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        os.environ.clear()
        os.environ.update(HOME=name, COLUMNS=str(TABLE_WIDTH))
        os.chdir(home)
        for file, record in RECORDS.items():
            (target / file).write_text(record(home), encoding="utf-8")


def openapi(home: Path) -> str:
    from chorus.api.app import create_app
    from chorus.api.process import build_service
    from chorus.config.front_end import ApiSettings, ModelSettings
    from tests.support.tiny_tokenizer import write_tiny_tokenizer

    write_tiny_tokenizer(home, 512)
    model = ModelSettings(engine_address=f"unix:{home}/no.sock", id="tiny", name="tiny", path=home)
    settings = ApiSettings(models=(model,))
    described = create_app(build_service(settings)).openapi()
    described["info"]["version"] = "VERSION"
    return json.dumps(described, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def help_of_commands(_home: Path) -> str:
    """The plain form of each help: the one with frames says the same, but its drawing changes with typer and rich."""
    import typer.main

    from chorus.cli import app

    return "\n".join(_helps(typer.main.get_command(app), "chorus", None))


def _helps(command: Any, name: str, parent: Any) -> Iterator[str]:
    context = command.make_context(name, [], parent=parent, resilient_parsing=True, terminal_width=WIDTH)
    command = context.command
    command.rich_markup_mode = None
    yield f"$ {context.command_path} --help\n{command.get_help(context)}\n"
    for each in getattr(command, "commands", {}).values():
        yield from _helps(each, each.name, context)


def config(_home: Path) -> str:
    from typer.testing import CliRunner

    from chorus.cli import app

    shown = CliRunner().invoke(app, ["config", "show"], catch_exceptions=False)
    assert shown.exit_code == 0, shown.output
    # One longer value would move a whole column.
    return "".join(re.sub(" {2,}", "  ", line.rstrip()) + "\n" for line in shown.stdout.splitlines())


def protocols(_home: Path) -> str:
    import chorus

    source = Path(chorus.__file__).parent
    files = sorted(source.rglob("*_pb2.py"), key=lambda file: file.name)
    modules = [".".join(file.relative_to(source.parent).with_suffix("").parts) for file in files]
    return "\n".join(_protocol(importlib.import_module(module).DESCRIPTOR) for module in modules)


def _protocol(descriptor: Any) -> str:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    file = FileDescriptorProto()
    descriptor.CopyToProto(file)
    lines = [f"{Path(file.name).name}: package {file.package}, {file.syntax or 'proto2'}"]
    for message in file.message_type:
        lines += _message(message, message.name)
    for enum in file.enum_type:
        lines += _enum(enum, enum.name)
    for service in file.service:
        lines += ["", f"service {service.name}", *(f"  {_method(method)}" for method in service.method)]
    return "\n".join(lines) + "\n"


def _message(message: Any, name: str) -> Iterator[str]:
    yield from ("", f"message {name}")
    for field in sorted(message.field, key=lambda field: field.number):
        yield f"  {field.number} {_field(field, message)}"
    for taken in message.reserved_range:
        yield f"  reserved {taken.start} to {taken.end - 1}"
    for word in message.reserved_name:
        yield f"  reserved {word}"
    for inner in message.nested_type:
        yield from _message(inner, f"{name}.{inner.name}")
    for enum in message.enum_type:
        yield from _enum(enum, f"{name}.{enum.name}")


def _field(field: Any, message: Any) -> str:
    label = field.Label.Name(field.label).removeprefix("LABEL_").lower()
    kind = field.type_name.lstrip(".") or field.Type.Name(field.type).removeprefix("TYPE_").lower()
    said = f"{field.name}: {'repeated ' if label == 'repeated' else ''}{kind}"
    if field.proto3_optional:
        return f"{said}, optional"
    return f"{said}, one of {message.oneof_decl[field.oneof_index].name}" if field.HasField("oneof_index") else said


def _enum(enum: Any, name: str) -> Iterator[str]:
    yield from ("", f"enum {name}")
    for value in enum.value:
        yield f"  {value.number} {value.name}"


def _method(method: Any) -> str:
    asked = ("stream " if method.client_streaming else "") + method.input_type.lstrip(".")
    answered = ("stream " if method.server_streaming else "") + method.output_type.lstrip(".")
    return f"{method.name}: {asked} -> {answered}"


RECORDS = {"openapi.json": openapi, "help.txt": help_of_commands, "config.txt": config, "protocols.txt": protocols}

if __name__ == "__main__":
    main()
