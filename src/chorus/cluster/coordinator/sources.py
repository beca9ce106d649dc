"""Who has the files that ranks need: asked of every node just before a model is loaded."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import grpc.aio

from chorus.cluster.coordinator.process import CALL_SECONDS, ConnectedNode
from chorus.cluster.transfer.share import SharedFile
from chorus.cluster.transfer.sources import FileSource, choose_sources
from chorus.messages.calls import why_failed
from chorus.messages.proto import agent_pb2 as wire

log = logging.getLogger("chorus.coordinator")


@dataclass(frozen=True)
class WantedFiles:
    """What one rank's node must have."""

    node: ConnectedNode
    share: str
    files: tuple[SharedFile, ...]


async def find_sources(
    nodes: Sequence[ConnectedNode],
    wanted: Sequence[WantedFiles],
    model: str,
    served_from: Callable[[ConnectedNode], str],
    absent: frozenset[str] = frozenset(),
) -> list[tuple[FileSource, ...]]:
    """For each want, from whom its node may copy: the machine that serves, which has all but what is absent there, and
    nodes that have some.
    """
    chosen: dict[tuple[str, str], tuple[FileSource, ...]] = {}
    for share in dict.fromkeys(want.share for want in wanted):
        wants = [want for want in wanted if want.share == share]
        files = {file.name: file for want in wants for file in want.files}
        offers = await who_has(nodes, model, share, files.values())
        sources = [FileSource("", frozenset(files) - absent), *offers]
        doors = {want.node.door: frozenset(file.name for file in want.files) for want in wants}
        chosen |= {(share, door): found for door, found in choose_sources(doors, sources).items()}
    return [_addressed(chosen[want.share, want.node.door], served_from(want.node)) for want in wanted]


async def who_has(
    nodes: Sequence[ConnectedNode], model: str, share: str, files: Iterable[SharedFile]
) -> tuple[FileSource, ...]:
    """The nodes that have some of these files already, and at which door they give them."""
    asked = tuple(files)
    offers = await asyncio.gather(*(_offered(node, model, share, asked) for node in nodes))
    return tuple(offer for offer in offers if offer.files)


def nobody_has(needs: Mapping[str, Iterable[SharedFile]], absent: frozenset[str], sources: Iterable[FileSource]) -> str:
    """In words, the files that no machine has, and who needs them; empty where somebody has each. `absent` are those
    that the machine which serves lacks.
    """
    lost = absent - {name for source in sources for name in source.files}
    needed_by: dict[str, list[str]] = {}
    for who, files in needs.items():
        for name in sorted(lost & {file.name for file in files}):
            needed_by.setdefault(name, []).append(who)
    return ", ".join(f"{name} (for {' and '.join(who)})" for name, who in sorted(needed_by.items()))


def wire_files(files: Iterable[SharedFile]) -> list[wire.ModelFile]:
    return [wire.ModelFile(name=file.name, size=file.size, fingerprint=file.fingerprint) for file in files]


async def _offered(node: ConnectedNode, model: str, share: str, files: Iterable[SharedFile]) -> FileSource:
    request = wire.OfferRequest(model=model, share=share, files=wire_files(files))
    try:
        reply = await node.stub.Offer(request, timeout=CALL_SECONDS)
    except (grpc.aio.AioRpcError, grpc.aio.UsageError) as error:
        log.warning("%s does not say which model files it has: %s", node.name, why_failed(error, "its agent is gone"))
        return FileSource(node.door, frozenset())
    return FileSource(node.door, frozenset(reply.files))


def _addressed(sources: Iterable[FileSource], serving: str) -> tuple[FileSource, ...]:
    return tuple(source if source.address else replace(source, address=serving) for source in sources)
