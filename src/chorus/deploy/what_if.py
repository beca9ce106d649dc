"""Who would hold what of a model, with the machines that a server has and with some that are only on paper."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from chorus.cluster.profile.machine import known_profile, node_of
from chorus.config.file import ConfigError
from chorus.config.sections import Capabilities, DeviceConfig
from chorus.config.served import ModelConfig
from chorus.config.settings import Settings
from chorus.deploy.front_end import settings_of
from chorus.deploy.groups.aside import in_thread
from chorus.deploy.groups.registry import NoSuchModel, Registry
from chorus.deploy.local_plan import usual_work
from chorus.errors import ChorusError
from chorus.models import ModelError
from chorus.models.resolve import split_hub_id
from chorus.planning.costs import ETHERNET, Links, Workload
from chorus.planning.facts import ModelFacts, named_facts, read_facts
from chorus.planning.nodes import Machines, described, parse_nodes
from chorus.planning.plan import DoesNotFit, PlanError
from chorus.planning.planner import plan
from chorus.planning.problem import PlanRequest
from chorus.platform.accelerator import device
from chorus.platform.accelerator.chip import gpu_cores
from chorus.platform.cpu import cores
from chorus.platform.memory import amounts

MOST_ADDED = 8
LONGEST = 64
LARGEST_BYTES = 10**15
MOST_CORES = 10_000
MOST_AT_ONCE = 2


class NotPlanned(ChorusError):
    """There is no plan, and there can be none for what was asked: says why."""


class WhatIf:
    """Plans for whoever asks a server. `machines` tells which it has now; the first of them leads."""

    def __init__(self, settings: Settings, registry: Registry, machines: Callable[[], Awaitable[Machines]]) -> None:
        self._settings = settings
        self._registry = registry
        self._machines = machines
        self._under_way = 0

    async def __call__(self, name: str, add: Sequence[str]) -> str:
        """JSON of the plan with the machines that there are (`today`) and with those on paper besides (`then`); raises
        NoSuchModel, NotPlanned.
        """
        added = on_paper(add, self._settings.engine.memory_fraction)
        if self._under_way >= MOST_AT_ONCE:
            raise NotPlanned(f"{self._under_way} plans are being made, the most at once; try again")
        self._under_way += 1
        try:
            today = await self._machines()
            return await in_thread(lambda: json.dumps(self._plans(name, today, joined(today, added))))
        finally:
            self._under_way -= 1

    def _plans(self, name: str, today: Machines, then: Machines) -> dict[str, Any]:
        settings, facts = self._model(name)
        work = usual_work(settings, facts)
        added = len(then.nodes) > len(today.nodes)
        return {
            "model": facts.name,
            "today": outcome(facts, today, work, _request(settings, today)),
            "then": outcome(facts, then, work, _request(settings, then)) if added else None,
        }

    def _model(self, name: str) -> tuple[Settings, ModelFacts]:
        """One of this server's, or one that this machine or the hub has: of that headers are fetched and no more."""
        try:
            if known := self._registry.named(name):
                folder = known.settings.path
                facts = read_facts(folder, known.id) if (folder / "config.json").is_file() else None
                return settings_of(self._settings, known.entry), facts or named_facts(known.entry.source)
            return settings_of(self._settings, ModelConfig(source=name)), named_facts(name)
        except ModelError as error:
            if not self._registry.named(name) and split_hub_id(name) is None:
                told = (
                    f"There is no model {name[:200]!r} here; an id of the hub (ORGANISATION/NAME) can be planned, too."
                )
                raise NoSuchModel(told) from None
            raise NotPlanned(str(error)) from None


def outcome(facts: ModelFacts, machines: Machines, work: Workload, request: PlanRequest) -> dict[str, Any]:
    """The plan as `chorus plan --json` prints it, or why there is none, with what is missing."""
    none: dict[str, Any] = {"fits": False, "plan": None, "missing_bytes": None, "hints": []}
    try:
        made = plan(facts, machines.nodes, machines.links, work, request)
    except DoesNotFit as error:
        return {**none, "reason": str(error), "missing_bytes": error.missing, "hints": list(error.hints)}
    except PlanError as error:
        return {**none, "reason": str(error)}
    made = replace(made, notes=(*machines.notes, *made.notes))
    return {**none, "fits": True, "reason": None, "plan": made.to_json()}


def _request(settings: Settings, machines: Machines) -> PlanRequest:
    """What was laid down for other machines does not hold for these; who serves now leads."""
    strategy = "auto" if settings.sharding.strategy == "custom" else settings.sharding.strategy
    parallel = settings.engine.parallel if len(machines.nodes) > 1 else "auto"
    leader = machines.nodes[0].name if strategy == "auto" else None
    return PlanRequest(strategy, leader=leader, parallel=parallel, transport=settings.engine.transport)


def on_paper(add: Sequence[str], memory_fraction: float) -> Machines:
    """Machines as `chorus plan --nodes` takes them, one to an entry; raises NotPlanned."""
    if len(add) > MOST_ADDED:
        raise NotPlanned(f"{len(add)} machines are more than the {MOST_ADDED} that may be added at once")
    made = [_on_paper(number, text, memory_fraction) for number, text in enumerate(add)]
    return Machines(
        tuple(machine for each in made for machine in each.nodes),
        Links(),
        tuple(note for each in made for note in each.notes),
    )


def _on_paper(number: int, text: str, memory_fraction: float) -> Machines:
    refusal = NotPlanned(f"expected memory and GPU cores like 16GB:10 in add[{number}], got {text[:LONGEST]!r}")
    if "," in text or len(text) > LONGEST:
        raise refusal
    try:
        made = parse_nodes(text if "=" in text else f"added{number + 1}={text}", memory_fraction)
    except (ConfigError, ValueError, ArithmeticError):
        raise refusal from None
    cores_told = text.partition(":")[2]
    if made.nodes[0].memory > LARGEST_BYTES or (cores_told and int(cores_told) > MOST_CORES):
        raise refusal
    return made


def joined(today: Machines, added: Machines) -> Machines:
    """All of them; where nobody has measured a link, it is the usual one of those that there are."""
    names = [machine.name for machine in (*today.nodes, *added.nodes)]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise NotPlanned(f"two machines are called {twice}: give another name, as in laptop=16GB:10")
    return Machines((*today.nodes, *added.nodes), today.links, (*today.notes, *added.notes))


def this_machine(settings: Settings, name: str, room: int | None) -> Machines:
    """This one alone, without measuring anything, since others are being served. `room` is what models may take of it;
    None: what is free.
    """
    fraction = settings.engine.memory_fraction
    profile = known_profile(cores.threads_per_rank(cores.usable_cores(), 1))
    if profile:
        found = Machines((node_of(profile, name, fraction),), Links(ETHERNET))
    else:
        total = amounts.total_memory()
        offers = Capabilities(memory_gb=total / 1e9, gpu_cores=gpu_cores(), backend=device.backend())
        found = described([DeviceConfig(device_id=name, hostname=None, capabilities=offers)], fraction)
        note = f"{name} was not measured so far, and its speed is an estimate: `chorus plan` there measures it"
        found = Machines(found.nodes, Links(ETHERNET), (note,))
    return found if room is None else replace(found, nodes=(replace(found.nodes[0], memory=room),))
