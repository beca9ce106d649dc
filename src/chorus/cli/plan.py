"""`chorus plan`: who would hold what, and what one would get, before anything is loaded."""

from __future__ import annotations

import json as json_format
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from chorus.cli.output import console, fail
from chorus.cluster.profile.machine import node_of, profile
from chorus.config.file import ConfigError
from chorus.config.served import ModelConfig
from chorus.config.settings import Settings
from chorus.config.sources import load_settings, use_cache_dir
from chorus.config.strategies import STRATEGIES
from chorus.deploy.local_plan import context_of, workload
from chorus.planning.costs import Links, Workload
from chorus.planning.facts import ModelFacts, find_facts
from chorus.planning.nodes import LINK_KINDS, Machines, described, parse_nodes
from chorus.planning.plan import DoesNotFit, Plan, PlanError, RankPlan, numbers, size
from chorus.planning.planner import plan as make_plan
from chorus.planning.problem import PlanRequest
from chorus.platform.cpu import cores
from chorus.transport import catalog

BAR_WIDTH = 30
_HYBRID = catalog.offer(catalog.carrying("hybrid"))
_PARTS = (
    ("weight_bytes", "cyan"),
    ("cache_bytes", "magenta"),
    ("activation_bytes", "yellow"),
    ("reserve_bytes", "bright_black"),
)


def plan(
    model: Annotated[
        str | None, typer.Argument(help="A folder, a Hugging Face id, a .gguf file or a catalog name.")
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="Settings or a hostfile with devices.")] = None,
    nodes: Annotated[
        str | None, typer.Option(help="Memory and GPU cores of each machine, rank 0 first, e.g. 48GB:30,16GB:10.")
    ] = None,
    ranks: Annotated[int | None, typer.Option(help="Without devices: ranks to run on this machine.")] = None,
    context: Annotated[int | None, typer.Option(help="Tokens that a sequence may have (8192, or the model's).")] = None,
    cpu_products: Annotated[
        str | None, typer.Option(help="What CPUs multiply with: auto, packed, float32 or blas.")
    ] = None,
    pack: Annotated[
        int | None, typer.Option(help="On CPUs, pack a model that is not quantized to 8 or 4 bits.")
    ] = None,
    kv_bits: Annotated[int | None, typer.Option(help="Keys and values in 8 or 4 bits.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at a time.")] = 1,
    prompt: Annotated[int, typer.Option(min=1, help="Prompt tokens of the request to optimise for.")] = 512,
    output: Annotated[int, typer.Option(min=1, help="Tokens it generates.")] = 256,
    split: Annotated[
        str | None, typer.Option(help="What these layers of each rank would give, rank 0 first, e.g. 20,7,3.")
    ] = None,
    parallel: Annotated[
        str | None,
        typer.Option(
            help="auto (the quickest), pipeline (runs of layers), tensor (slices of all layers), hybrid (stages of "
            "several machines that divide their layers) or single."
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(help="Tensor parallel: each machine's share, rank 0 first, e.g. 2,1; hybrid: within each stage."),
    ] = None,
    transport: Annotated[
        str | None, typer.Option(help=f"What the ranks will use; with {_HYBRID}, auto may choose hybrid.")
    ] = None,
    strategy: Annotated[str | None, typer.Option(help=f"One of {', '.join(STRATEGIES)}.")] = None,
    link: Annotated[
        str | None, typer.Option(help=f"How machines are connected: {', '.join(LINK_KINDS)} (told by the devices).")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Show which machine would hold which layers, how much memory that takes and how fast it would be.

    Example: chorus plan smollm2-135m --nodes 48GB:30,16GB:10 --context 8192
    """
    try:
        engine = {"ranks": ranks, "context": context, "parallel": parallel, "split": split, "weights": weights}
        engine |= {"transport": transport, "kv_bits": kv_bits, "cpu_products": cpu_products, "pack": pack}
        settings = load_settings(config, {"model": model, "engine": engine, "sharding": {"strategy": strategy}})
        others, settings = settings.served[1:], settings.of_first
        use_cache_dir(settings)
        with console.status(f"Reading the headers of {escape(settings.model)}"):
            facts = find_facts(settings.model)
        machines = _machines(settings, nodes, link)
        work = _workload(settings, facts, prompt, output, concurrency)
        made = make_plan(facts, machines.nodes, machines.links, work, _request(settings, nodes))
    except DoesNotFit as error:
        _refuse(error, json)
    made = replace(made, notes=(*machines.notes, *made.notes, *_hybrid_notes(made), *_notes_of_others(others)))
    if json:
        typer.echo(json_format.dumps(made.to_json(), indent=2))
    else:
        show(made, Console())


def _hybrid_notes(made: Plan) -> tuple[str, ...]:
    """Says where a hybrid can run, also for equal machines that could run one: enough for two stages of two."""
    if made.parallel == "hybrid":
        return (catalog.hybrid_note(),)
    equal = len({rank.memory_bytes for rank in made.ranks}) == 1
    return (catalog.hybrid_note(),) if equal and len(made.ranks) >= 4 and len(made.ranks) % 2 == 0 else ()


def _notes_of_others(others: Sequence[ModelConfig]) -> tuple[str, ...]:
    """A plan is of one model and has the machines for itself: where the settings name more, it says so."""
    named = ", ".join(model.source for model in others)
    return (f"this is the first model alone, without {named}: chorus plan NAME plans another",) if others else ()


def _refuse(error: DoesNotFit, json: bool) -> NoReturn:
    if json:
        typer.echo(json_format.dumps({"fits": False, "missing_bytes": error.missing, "hints": error.hints}, indent=2))
        raise typer.Exit(1)
    fail(str(error))


def _machines(settings: Settings, nodes: str | None, link: str | None) -> Machines:
    if link is not None and link not in LINK_KINDS:
        raise ConfigError(f"--link: expected one of {', '.join(LINK_KINDS)}, got {link!r}")
    fraction = settings.engine.memory_fraction
    if nodes is not None:
        machines = parse_nodes(nodes, fraction)
    elif settings.devices and all(device.capabilities.memory_gb for device in settings.devices):
        machines = described(settings.devices, fraction)
    else:
        ranks = 1 if settings.devices else settings.engine.ranks
        threads = settings.engine.threads or cores.threads_per_rank(cores.usable_cores(), ranks)
        with console.status("Measuring this machine (once; it takes seconds)"):
            found = profile(threads)
        if settings.devices:
            machines = described(settings.devices, fraction, node_of(found, "here", fraction))
        else:
            names = [f"rank{rank}" for rank in range(ranks)] if ranks > 1 else ["here"]
            parts = tuple(node_of(found, name, fraction, ranks) for name in names)
            machines = Machines(parts, Links(LINK_KINDS["loopback"]))
    return replace(machines, links=Links(LINK_KINDS[link])) if link else machines


def _workload(settings: Settings, facts: ModelFacts, prompt: int, output: int, concurrency: int) -> Workload:
    context = context_of(settings, facts)
    if prompt + output > context:
        raise PlanError(f"{prompt} + {output} tokens do not fit a context of {context}: change --context")
    return workload(settings, facts, prompt, output, concurrency)


def _request(settings: Settings, nodes: str | None) -> PlanRequest:
    sharding, engine = settings.sharding, settings.engine
    parallel = "tensor" if engine.parallel == "auto" and engine.weights else engine.parallel
    request = PlanRequest(parallel=parallel, weights=engine.weights, transport=engine.transport)
    if nodes is not None:
        strategy = sharding.strategy
        parts = len(engine.split or ())
        fits = parts and (not len(nodes.split(",")) % parts if parallel == "hybrid" else parts == len(nodes.split(",")))
        if strategy == "custom" and not fits:
            strategy = "auto"  # what was laid down is for other machines
        return replace(request, strategy=strategy, layers=engine.split)
    strategy = sharding.strategy
    if strategy == "auto" and not settings.devices and settings.engine.ranks > 1:
        strategy = "balanced"  # so many ranks on one machine were asked for: use them all
    leader = next((device.device_id for device in settings.devices if device.role == "coordinator"), None)
    proportions = sharding.custom_proportions
    return replace(request, strategy=strategy, proportions=proportions, layers=engine.split, leader=leader)


def show(made: Plan, out: Console) -> None:
    work, predicted = made.workload, made.prediction
    title = "one node" if made.parallel == "single" else f"{made.parallel} over {len(made.ranks)} ranks"
    out.print(f"[bold]{escape(made.model)}[/]  {made.model_layers} layers  {title}  (strategy {made.strategy})")
    table = Table(box=None, pad_edge=False)
    held = {"tensor": ("WEIGHT",), "hybrid": ("LAYERS", "WEIGHT")}.get(made.parallel, ("LAYERS",))
    for name in ("RANK", "NODE", *held, "WEIGHTS", "CACHE", "FREE", "STEP", "NUMBERS"):
        table.add_column(name, justify="left" if name in ("NODE", *held, "NUMBERS") else "right", overflow="fold")
    for rank in made.ranks:
        parts = {"LAYERS": f"{rank.first_layer}-{rank.last_layer}", "WEIGHT": str(rank.share)}
        figures = (size(rank.weight_bytes), size(rank.cache_bytes), size(rank.headroom_bytes))
        step = f"{rank.step_seconds * 1e3:.3g} ms"
        table.add_row(str(rank.rank), rank.node, *(parts[name] for name in held), *figures, step, rank.numbers)
    out.print(table)
    for rank in made.ranks:
        out.print(Text(f"rank {rank.rank:<3}") + bar(rank), soft_wrap=True)
    out.print(
        f"{predicted.tokens_per_second:.3g} tokens/s for each of {work.concurrency}, "
        f"first token after {predicted.first_token_seconds:.3g} s, a request of {work.prompt} + {work.output} tokens "
        f"in {predicted.request_seconds:.3g} s (predicted; context {work.context})",
        soft_wrap=True,
    )
    out.print(f"limited by {escape(made.limit)}", soft_wrap=True)
    for node in made.excluded:
        out.print(f"left out {escape(node.node)}: {escape(node.reason)}", soft_wrap=True)
    for note in made.notes:
        out.print(f"note: {escape(note)}", soft_wrap=True)
    if made.parallel != "single":
        out.print(f"to serve it like this: {_options(made)}", soft_wrap=True)


def _options(made: Plan) -> str:
    """The options of `chorus serve` that give this plan."""
    if made.parallel == "tensor":
        return f"--parallel tensor --weights {numbers(made.weights)}"
    if made.parallel == "hybrid":
        transport = catalog.carrying("hybrid")[0]
        division = f"--split {numbers(made.split)} --weights {numbers(made.weights)}"
        return f"--parallel hybrid --transport {transport} {division}"
    return f"--split {numbers(made.split)}"


def bar(rank: RankPlan) -> Text:
    """What fills a rank's memory: weights, cache, activations, reserve; the rest is free."""
    text, used = Text(), 0
    for name, style in _PARTS:
        cells = round(getattr(rank, name) / rank.memory_bytes * BAR_WIDTH)
        text.append("█" * cells, style=style)
        used += cells
    text.append("░" * max(0, BAR_WIDTH - used), style="dim")
    text.append(f" {size(rank.needed_bytes)} of {size(rank.memory_bytes)}")
    return text
