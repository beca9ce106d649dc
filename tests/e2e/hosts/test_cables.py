"""Three hosts with a subnet per cable, a slow network, a VPN that leads nowhere, and cables that come up late."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.hosts.cables import Cables
from tests.support.tiny_model import write_tiny_model

pytestmark = [pytest.mark.system, pytest.mark.linux("network namespaces"), pytest.mark.timeout(600)]


def test_a_cluster_forms_over_the_quickest_links_and_a_pair_without_a_way_is_named_before_loading(
    cables: Cables, tmp_path: Path
) -> None:
    model = write_tiny_model(tmp_path / "tiny", "llama", vocab_size=512, max_position_embeddings=4096)
    for host in (1, 2, 3):
        cables.dead_vpn(host)
    cables.plug(1, 2, "90.0", slow=True)
    cables.plug(1, 2, "12.0")
    # Nothing is plugged in at host 3 when its agent starts.
    agents = {host: cables.join(host) for host in (2, 3)}
    agents[3].wait_for("waiting on")
    cables.plug(1, 3, "13.0")

    server = cables.serve(model)
    assert server.wait() == 1, server.log
    lost = r"rank 2 on host[23] cannot reach rank 1 on host[23], tried .*10\.8\.0\.[23] \(no answer\)"
    server.wait_for(lost)
    assert "holds layers" not in server.log + agents[2].log + agents[3].log

    cables.plug(2, 3, "23.0")
    for host in (2, 3):
        agents[host].wait_for(rf"addresses are now .*10\.23\.0\.{host}")
    server = cables.serve(model)
    url = server.wait_for(r"ready .* at +(http://\S+)/v1")[1]
    server.wait_for(r"rank 2 -> rank 1 over ethernet 10\.23\.0\.[23]")
    server.wait_for(r"rank 0 -> rank [12] over ethernet 10\.12\.0\.2, [\d.]+ [GM]bit/s")
    server.wait_for(r"rank 0 -> rank [12] over ethernet 10\.13\.0\.3")
    assert cables.ask(url) == "200"
    assert server.stop() == 0, server.log
