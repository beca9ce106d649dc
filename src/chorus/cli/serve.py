"""`chorus serve`: models on an OpenAI endpoint, from this machine or over the nodes of a cluster.

The hidden options are for `chorus up`, which runs this command on the first host: where agents call in (--listen), the
port of rank 0 (--leader-port), how long nodes may take (--start-timeout), where this node's log and a copy of what is
printed go (--log-dir, --log-file), and a file to write when requests would be answered (--ready-file).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chorus.cli.options import environment_of, parse_peer
from chorus.cli.output import fail
from chorus.cluster.logs import copied_output
from chorus.config.choice import for_one_model
from chorus.config.settings import Settings
from chorus.config.sources import is_setting, load_told, use_cache_dir
from chorus.deploy.elsewhere import check_leads, check_served_here, check_served_over_nodes
from chorus.deploy.local import serve_here
from chorus.platform.process import logs
from chorus.platform.process.output import RotatingLog
from chorus.platform.storage import paths
from chorus.security.node_folder import DOOR_PORT, own_name
from chorus.transport import catalog

DEFAULT_LISTEN = f"0.0.0.0:{DOOR_PORT}"


def serve(
    command: typer.Context,
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL]...",
            help="A folder (presharded or not), a Hugging Face id, a .gguf file or a catalog name. Of several, requests"
            " that name none mean the first; the others are loaded when they are asked for.",
        ),
    ] = None,
    named: Annotated[
        str | None, typer.Option("--model", metavar="MODEL", help="The model, in place of the argument.")
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="Settings file (YAML or JSON).")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; loopback unless told otherwise.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on (8100).")] = None,
    ranks: Annotated[int | None, typer.Option(help="Processes to spread the model over.")] = None,
    split: Annotated[
        str | None, typer.Option(help="Layers of each stage, rank 0's (the last layers) first, e.g. 20,7,3.")
    ] = None,
    parallel: Annotated[
        str | None,
        typer.Option(help="pipeline: runs of layers; tensor: slices of all layers; hybrid: stages of several ranks."),
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="Tensor: each rank's share, rank 0 first, e.g. 2,1; hybrid: within each stage.")
    ] = None,
    transport: Annotated[
        str | None,
        typer.Option(
            help=f"How ranks exchange tensors: {catalog.help_for('machine')}; between CUDA GPUs {catalog.for_cuda()}; "
            f"with --cluster, over RDMA, {catalog.over_rdma().name}."
        ),
    ] = None,
    compression: Annotated[
        str | None,
        typer.Option(help=f"Pack activations sent over {catalog.packing()}: auto (where a link is slow), off or on."),
    ] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads per rank (rank 0 tries what is best).")] = None,
    dtype: Annotated[
        str | None, typer.Option(help="auto, float32, bfloat16, float16 or stored (auto: what is fastest here).")
    ] = None,
    cpu_products: Annotated[
        str | None,
        typer.Option(
            help="What CPUs multiply with: auto (packed weights of a quantized model), packed, float32 or blas."
        ),
    ] = None,
    pack: Annotated[
        int | None, typer.Option(help="On CPUs, pack the weights of a model that is not quantized to 8 or 4 bits.")
    ] = None,
    kv_bits: Annotated[
        int | None, typer.Option(help="Keys and values in 8 or 4 bits: half or a quarter of their memory in float16.")
    ] = None,
    context: Annotated[int | None, typer.Option(help="Serve a shorter context than the model's.")] = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Keep nothing of one request for the next.")] = False,
    cache_memory: Annotated[
        str | None,
        typer.Option(help="Of each rank, for running requests and stored prefixes, e.g. 6GB (what the model leaves)."),
    ] = None,
    cache_disk: Annotated[
        str | None, typer.Option(help="Of each rank's disk, for prefixes that memory has no room for, e.g. 20GB.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="For requests that give none.")] = None,
    top_p: Annotated[float | None, typer.Option(help="For requests that give none.")] = None,
    top_k: Annotated[int | None, typer.Option(help="For requests that give none.")] = None,
    memory: Annotated[
        str | None, typer.Option(help="What all models may take of this machine together, e.g. 12GB (what is free).")
    ] = None,
    on_full: Annotated[
        str | None,
        typer.Option(
            help="What does not fit beside the others: swap (one of them goes), wait (for one to go), refuse."
        ),
    ] = None,
    idle_unload: Annotated[
        str | None, typer.Option(help="Unload a model that nobody has asked for so long, e.g. 30m (it stays).")
    ] = None,
    any_model: Annotated[
        bool, typer.Option("--any-model", help="Also serve, by its name, every model that this machine has.")
    ] = False,
    alias: Annotated[list[str] | None, typer.Option(help="Another name for the model; may be repeated.")] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="Another name that clients call this server by; may be repeated.")
    ] = None,
    cors_origin: Annotated[
        list[str] | None, typer.Option(help="Web pages from here may call the API (http://host:port); repeatable.")
    ] = None,
    tool_parser: Annotated[
        str | None, typer.Option(help="How the model writes tool calls, where its template does not tell.")
    ] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run the Python code that the model's folder brings.")
    ] = False,
    cluster: Annotated[bool, typer.Option("--cluster", help="Over the nodes that joined this cluster.")] = False,
    peer: Annotated[
        list[str] | None, typer.Option(help="With --cluster: host[:port] of a node's agent; may be repeated.")
    ] = None,
    nodes: Annotated[int | None, typer.Option(help="With --cluster: wait for so many nodes besides this one.")] = None,
    env: Annotated[list[str] | None, typer.Option(help="NAME=VALUE for every rank; may be repeated.")] = None,
    https: Annotated[bool, typer.Option("--https", help="HTTPS, with a certificate of this cluster's own.")] = False,
    tls_cert: Annotated[Path | None, typer.Option(help="HTTPS, with this certificate (PEM).")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="The key of --tls-cert (PEM).")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Allow a non-loopback address without a key.")] = False,
    step_log: Annotated[Path | None, typer.Option(help="Write one JSON line per engine step to this file.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log as JSON lines.")] = False,
    door: Annotated[str, typer.Option("--listen", hidden=True)] = DEFAULT_LISTEN,
    leader_port: Annotated[int | None, typer.Option(hidden=True)] = None,
    start_timeout: Annotated[float | None, typer.Option(hidden=True)] = None,
    log_dir: Annotated[Path | None, typer.Option(hidden=True)] = None,
    log_file: Annotated[Path | None, typer.Option(hidden=True)] = None,
    ready_file: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Serve models on an OpenAI-compatible endpoint until stopped (Ctrl-C).

    Example: chorus serve smollm2-135m --port 8100

    Example: chorus serve mlx-community/Qwen3-4B-4bit smollm2-135m --memory 12GB --idle-unload 30m

    Example: chorus serve smollm2-135m --parallel hybrid --split 20,10 --weights 2,1 (4 ranks, over mpi)

    Example: chorus serve smollm2-135m --cluster --peer 192.168.1.20

    Example: chorus serve mlx-community/Qwen3-30B-A3B-4bit smollm2-135m --cluster
    """
    if (peer or nodes) and not cluster:
        fail("--peer and --nodes go with --cluster")
    if models and named and models != [named]:
        fail(f"the model is {', '.join(models)} and --model {named}: give one of them")
    given = models or ([named] if named else [])
    overrides = {
        "model": given[0] if len(given) == 1 else None,
        "models": given if len(given) > 1 else None,
        "load": {"memory": memory, "on_full": on_full, "idle_unload": idle_unload},
        "api": {
            "any_model": any_model or None,
            "host": host,
            "port": port,
            "aliases": tuple(alias) if alias else None,
            "hosts": tuple(allow_host) if allow_host else None,
            "cors_origins": tuple(cors_origin) if cors_origin else None,
            "https": https or None,
            "tls_certificate": tls_cert,
            "tls_key": tls_key,
            "tool_parser": tool_parser,
        },
        "engine": {
            "ranks": ranks,
            "split": None if cluster else split,
            "parallel": parallel,
            "weights": weights,
            "transport": transport,
            "compression": compression,
            "threads": threads,
            "dtype": dtype,
            "cpu_products": cpu_products,
            "pack": pack,
            "kv_bits": kv_bits,
            "context": context,
            "trust_remote_code": trust_remote_code or None,
            "step_log": step_log,
            "start_timeout_seconds": start_timeout,
        },
        "cache": {"enabled": False if no_cache else None, "memory": cache_memory, "disk": cache_disk},
        "sampling": {"temperature": temperature, "top_p": top_p, "top_k": top_k},
        "log": {"level": log_level, "json_lines": log_json or None},
    }
    variables = environment_of(env or [])
    loaded = load_told(config, overrides, variables=variables)
    settings = loaded.settings
    if not cluster:
        check_served_here(loaded)
    else:
        check_served_over_nodes(loaded, "chorus serve --cluster")
        if leader_port is None:  # `chorus up` has found out itself which machine leads
            check_leads(loaded)
    if cluster and split:
        if len(settings.served) > 1:
            fail(f"--split: {for_one_model('engine.split', f'[{split}]', settings.served)}")
        settings = _with_split(settings, split)
    if cluster:
        asked = bool(split or weights or loaded.typed("engine.ranks"))
        nodes = _expected_nodes(settings, nodes, asked, bool(peer))
    if settings.engine.parallel == "single" and (settings.engine.ranks > 1 or (cluster and nodes != 0)):
        fail("parallel single means one rank: leave it out, or leave out the ranks")
    environment = {name: text for name, text in variables.items() if not is_setting(name)}
    if log_file:
        # For as long as the whole command: an error that ends it belongs in the log too.
        command.find_root().with_resource(copied_output(RotatingLog(log_file)))
    logs.setup(settings.log.level, settings.log.json_lines)
    use_cache_dir(settings)
    if not cluster:
        serve_here(settings, insecure, environment, ready_file)
        return
    logged = log_dir or paths.log_dir(), log_file
    _serve_over_nodes(settings, insecure, peer or [], nodes, environment, door, logged, leader_port, ready_file)


def _serve_over_nodes(
    settings: Settings,
    insecure: bool,
    peers: list[str],
    nodes: int | None,
    environment: dict[str, str],
    listen: str,
    logged: tuple[Path, Path | None],
    leader_port: int | None,
    ready_file: Path | None,
) -> None:
    # Agents, certificates and discovery take a while to import, and most servers need none of them.
    from chorus.deploy.nodes.options import ClusterOptions
    from chorus.deploy.nodes.serve import serve_over_nodes

    host, port = parse_peer(listen)
    options = ClusterOptions(
        peers=tuple(parse_peer(text) for text in peers),
        nodes=nodes,
        here=settings.devices[0].device_id if settings.devices else own_name(),
        hints=tuple((device.hostname, DOOR_PORT) for device in settings.devices[1:] if device.hostname and not peers),
        names=tuple(device.device_id for device in settings.devices[1:]),
        leader_port=leader_port,
        environment={**settings.cluster.env, **environment},
        host=host,
        port=port,
        logs=logged[0],
        log_file=logged[1],
        start_timeout_seconds=settings.engine.start_timeout_seconds,
        nodes_choose_transport=settings.engine.transport == catalog.AUTO,
        coordinator=settings.cluster.coordinator,
        rdma_devices=settings.rdma_devices,
        threads=settings.engine.threads,
        timing=settings.watch,
        replan_by_itself=settings.recovery.replan == "auto",
    )
    serve_over_nodes(settings, insecure, options, ready_file)


def _expected_nodes(settings: Settings, nodes: int | None, asked: bool, peers: bool) -> int | None:
    """How many nodes to wait for besides this one; None: those that are named, or found. `asked`: this command line
    says how many ranks there are.
    """
    ranks = settings.engine.ranks
    if nodes is not None and asked and nodes != ranks - 1:
        fail(
            f"--nodes {nodes} makes {nodes + 1} ranks with this machine, and {ranks} are asked for: change one of them"
        )
    if nodes is not None or asked:
        return ranks - 1 if nodes is None else nodes
    return None if peers or settings.devices or ranks == 1 else ranks - 1


def _with_split(settings: Settings, split: str) -> Settings:
    """The number of nodes is not known yet, so the split is taken as it is and checked when they are."""
    try:
        counts = tuple(int(part) for part in split.split(","))
    except ValueError:
        fail(f"--split {split}: must be numbers of layers separated by commas, e.g. 20,7,3")
    engine = settings.engine.model_copy(update={"split": counts, "ranks": len(counts)})
    return settings.model_copy(update={"engine": engine})
