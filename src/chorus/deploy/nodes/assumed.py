"""What a plan assumes of the links between its ranks, for whoever measures them again (`chorus doctor`)."""

from __future__ import annotations

from collections.abc import Sequence

from chorus.cluster.coordinator.process import ConnectedNode
from chorus.cluster.profile.assumed import AssumedLink
from chorus.deploy.nodes.links import Routes
from chorus.deploy.nodes.plan import HERE, links_between
from chorus.transport import catalog


def assumed_links(
    own_id: str, nodes: Sequence[ConnectedNode], transport: str, routes: Routes
) -> dict[tuple[str, str], AssumedLink]:
    """By the ids of both ends. The figures are those that the planner is given, whether it was asked or not: what
    nobody has measured is an Ethernet.
    """
    ids, names = [own_id, *(node.node_id for node in nodes)], [HERE, *(node.name for node in nodes)]
    links = links_between(list(nodes), transport, routes)
    measurable = not catalog.get(transport).rdma
    return {
        (ids[one], ids[other]): AssumedLink(
            ids[one],
            ids[other],
            route.ip,
            route.kind,
            route.round_trip,
            links.between(names[one], names[other]).bandwidth if measurable else None,
            measurable and bool(route.bandwidth or (one == 0 and nodes[other - 1].bandwidth)),
        )
        for (one, other), route in routes.items()
    }
