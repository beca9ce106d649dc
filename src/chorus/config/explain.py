"""One line for a value that is not right: who gave it, by which name, and what was expected."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import ValidationError

from chorus.config.file import ConfigError
from chorus.config.origins import Given, Values, giver, shown_path
from chorus.config.settings import Settings, fields_of, nearest
from chorus.config.variables import name_of
from chorus.platform.process.timing import BadTiming

Location = tuple[int | str, ...]


def unfit(error: ValidationError, values: Values, within: Location = ()) -> ConfigError:
    """What to raise for the first thing that is wrong. `within`: where in the tree stands what was looked at."""
    problems = error.errors()
    # A slip in a key is why another one is missing.
    problem = next((each for each in problems if each["type"] == "extra_forbidden"), problems[0])
    clash = problem.get("ctx", {}).get("error")
    if isinstance(clash, BadTiming):
        return ConfigError(_explain_timing(clash, values))
    return ConfigError(_explain(problem, (*within, *problem["loc"]), values))


def _explain_timing(clash: BadTiming, values: Values) -> str:
    """Where only the other one of two was given, that is the one to look at."""
    keys = [f"watch.{setting}" for setting in clash.settings]
    given = next((values[key] for key in keys if key in values), None)
    place = given.place if given else keys[0]
    return f"{place}: {clash}" if place.endswith(keys[0]) else f"{place}: {keys[0]} {clash}"


def _explain(problem: Any, found_at: Location, values: Values) -> str:
    location = tuple(part for part in found_at if not _is_type_name(part))
    key, given = giver(values, location)
    path = shown_path(location)
    where = given.place if given else path
    if given and given.spelled == key and path.startswith(key):
        where = f"{given.source}: {path}"
    elif given and path.startswith(f"{key}[") and (given.spelled == name_of(key) or not _is_variable(given)):
        where = f"{given.source}: {given.spelled}{path.removeprefix(key)}"
    if problem["type"] == "extra_forbidden":
        return f"{where}: no such setting{nearest(str(location[-1]), _names_beside(location))}"
    if problem["type"] == "missing":
        return f"{where}: missing; expected a value"
    message = (
        problem["msg"].removeprefix("Value error, ").replace("Input should", "should").replace("valid tuple", "list")
    )
    shown = "" if problem["type"] == "value_error" and path != key else f", got {_short(problem['input'])}"
    return f"{where}: {message}{shown}"


def _is_variable(given: Given) -> bool:
    return given.source.startswith(("environment", ".env"))


def _is_type_name(part: int | str) -> bool:
    """Pydantic names the branch of a union in its locations: not a part of the user's path."""
    return isinstance(part, str) and (part in {"str", "int"} or "[" in part)


def _names_beside(location: Location) -> list[str]:
    """The settings that stand where this one was looked for."""
    kind: Any = Settings
    for part in location[:-1]:
        kind = get_args(kind)[0] if isinstance(part, int) else fields_of(kind).get(part)
    return list(fields_of(kind))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
