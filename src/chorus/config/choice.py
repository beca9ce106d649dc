"""Which models are served, of all that the sources name.

The highest source that names any names all of them. A plain name there stands for the entry below that has this name,
with everything it says. Where one source gives both, `model` names the first of `models`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

from pydantic import ValidationError

from chorus.config.explain import unfit
from chorus.config.file import ConfigError
from chorus.config.origins import COMMAND_LINE, DEFAULT, Given, Values
from chorus.config.sections import Section
from chorus.config.served import ModelConfig
from chorus.config.settings import DIVISION, Settings, fields_of, given_of

ONE_MODEL = {"engine.split": "[20, 7, 3]", "engine.weights": "[2, 1]", "engine.step_log": "steps.jsonl"}
"""What means nothing for several models at once, each with an example of what may be said of one."""


@dataclass(frozen=True)
class Entry:
    """One model, and where it is named."""

    model: ModelConfig
    given: Given
    number: int | None = None
    """In the list that was given, from 0; None where it was named alone."""

    @property
    def place(self) -> str:
        return self.given.place if self.number is None else f"{self.given.place}[{self.number}]"


@dataclass(frozen=True)
class Choice:
    entries: tuple[Entry, ...] = ()
    """Nothing where nobody names a model, and where one is named and no more is said of it."""
    values: Values = field(default_factory=dict)
    """What goes over the settings `model` and `models` as they were given."""
    warnings: tuple[str, ...] = ()

    @property
    def places(self) -> tuple[str, ...]:
        return tuple(entry.place for entry in self.entries)


def choose(sources: Sequence[Values]) -> Choice:
    """From what each source says, the lowest first, and the command line last."""
    entries: list[Entry] = []
    known: dict[str, Entry] = {}
    origin: Values = {}
    warnings = []
    for values in sources:
        named = list(_named(values))
        if not named:
            continue
        lead, others = values.get("model"), origin.get("models")
        if "models" not in values and others and lead and lead.source != COMMAND_LINE and len(entries) > 1:
            warnings.append(f"{others.place} has no effect: {lead.place} names the one model that is served")
        entries = [known.get(entry.model.source, entry) if entry.model.plain else entry for entry in named]
        known |= {name: entry for entry in named if not entry.model.plain for name in entry.model.names}
        origin = {key: values[key] for key in ("model", "models") if key in values}
    if not entries:
        return Choice()
    if len(entries) == 1:
        entries = [_under(sources[-1], entries[0])]
    first = entries[0].model.source
    given = origin.get("model", Given(first, DEFAULT, "the first of models"))
    model = Given(first, given.source, given.spelled)
    if len(entries) == 1 and entries[0].model.plain and "models" not in origin:
        return Choice((), {"model": model}, tuple(warnings))
    listed = origin.get("models") or entries[0].given
    models = Given(tuple(entry.model for entry in entries), listed.source, listed.spelled)
    return Choice(tuple(entries), {"model": model, "models": models}, tuple(warnings))


def _named(values: Values) -> Iterator[Entry]:
    """The models that one source names, the first of them first."""
    given: Values = {key: values[key] for key in ("model", "models") if key in values}
    try:
        parsed = Settings(**{key: each.value for key, each in given.items()})
    except ValidationError as error:
        raise unfit(error, given) from None
    listed = [Entry(model, given["models"], number) for number, model in enumerate(parsed.models)]
    if "model" in given:
        first = next((entry for entry in listed if parsed.model in entry.model.names), None)
        yield first or Entry(ModelConfig(source=parsed.model), given["model"])
        listed = [entry for entry in listed if entry is not first]
    yield from listed


def _under(typed: Values, entry: Entry) -> Entry:
    """Of one model alone, what the command line says goes over what its entry says; of several, it holds for those
    whose entries do not say it.
    """
    if entry.model.plain:
        return entry
    said = set(typed) | ({f"engine.{name}" for name in DIVISION} if _divides(typed) else set())
    kept = {name: value for name, value in given_of(entry.model).items() if not {f"api.{name}", f"load.{name}"} & said}
    for name in ("engine", "cache", "sampling"):
        section: Section = getattr(entry.model, name)
        rest = {inner: value for inner, value in given_of(section).items() if f"{name}.{inner}" not in said}
        kept[name] = type(section)(**rest)
    return replace(entry, model=ModelConfig(**kept | {"aliases": entry.model.aliases}))


def _divides(values: Values) -> bool:
    return any(f"engine.{name}" in values for name in DIVISION)


def check_models(settings: Settings, chosen: Choice, values: Values) -> None:
    """Refuse models that cannot be told apart, and what is said of one of them and does not go with the rest."""
    _check_names(settings, chosen.entries)
    if len(chosen.entries) > 1:
        _refuse_for_several(chosen.entries, values)
    for entry in chosen.entries:
        try:
            settings.of(entry.model)
        except ValidationError as error:
            section = next(name for name, kind in fields_of(Settings).items() if _is_called(kind, error.title))
            within = ("models", *(() if entry.number is None else (entry.number,)), section)
            raise unfit(error, {"models": entry.given}, within) from None


def _is_called(kind: object, title: str) -> bool:
    return isinstance(kind, type) and kind.__name__ == title


def _check_names(settings: Settings, entries: Sequence[Entry]) -> None:
    for one, other in combinations(entries, 2):
        if one.model.source == other.model.source:
            raise ConfigError(f"{other.place}: {other.model.source} is already {one.place}; expected each model once")
        shared = settings.api.aliases if one is entries[0] else ()
        first, second = {*one.model.aliases, *shared}, {*other.model.aliases}
        both = first & {*other.model.names, _last_part(other)} | second & {one.model.source, _last_part(one)}
        if both:
            told = f"{one.model.source} ({one.place}) and {other.model.source} ({other.place})"
            raise ConfigError(f"{told} are both called {min(both)}; expected each name for one model")


def _last_part(entry: Entry) -> str:
    """What a model is called for short."""
    return entry.model.source.rstrip("/").rpartition("/")[2].partition("@")[0]


def _refuse_for_several(entries: Sequence[Entry], values: Values) -> None:
    typed = {"api.aliases": "[coder]"} if values.get("api.aliases", entries[0].given).source == COMMAND_LINE else {}
    for key, example in {**ONE_MODEL, **typed}.items():
        if key in values and values[key].value is not None:
            raise ConfigError(f"{values[key].place}: {for_one_model(key, example, [entry.model for entry in entries])}")


def for_one_model(key: str, example: str, models: Sequence[ModelConfig]) -> str:
    """What to tell whoever says of several models what can only mean one, as `split: [20, 7, 3]`."""
    section, _, name = key.rpartition(".")
    said = f"{name}: {example}" if section == "api" else f"{section}: {{{name}: {example}}}"
    entry = f"{{source: {models[0].source}, {said}}}"
    return (
        f"can only mean one model, and {len(models)} are served: put it into the model's entry in chorus.yaml, e.g. "
        f"models: [{', '.join([entry, *(model.source for model in models[1:])])}]"
    )
