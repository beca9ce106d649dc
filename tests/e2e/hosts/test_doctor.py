"""A link that has become slow, between two nodes neither of which is asked by the user."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cluster.harness import eventually
from tests.e2e.hosts.cables import Cables
from tests.support.tiny_model import write_tiny_model

pytestmark = [pytest.mark.system, pytest.mark.linux("network namespaces"), pytest.mark.timeout(600)]


def links_of(cables: Cables) -> dict[frozenset[str], str]:
    """What doctor says on the first host of the speed of each link."""
    doctor = cables.run(1, "doctor", "doctor", "--cluster", "--json")
    assert doctor.wait(120) == 0, doctor.log
    findings = json.loads(doctor.log)["findings"]
    return {frozenset(each["where"].split(" → ")): each["status"] for each in findings if each["name"] == "link"}


def test_a_link_that_became_slower_than_the_plan_assumes_is_found_and_the_others_are_well(
    cables: Cables, tmp_path: Path
) -> None:
    model = write_tiny_model(tmp_path / "tiny", "llama", vocab_size=512, max_position_embeddings=4096)
    for one, other in ((1, 2), (1, 3), (2, 3)):
        cables.plug(one, other, f"{one}{other}.0")
    for host in (2, 3):
        cables.join(host)
    cables.serve(model).wait_for(r"ready .* at +http://")
    ends = [frozenset(("this machine", "host2")), frozenset(("this machine", "host3")), frozenset(("host2", "host3"))]
    # Beside other work a link may seem slow for a moment.
    assert eventually(lambda: links_of(cables) == dict.fromkeys(ends, "ok"))
    for host in (2, 3):
        cables.slow_down(host, "23.0")
    assert eventually(lambda: links_of(cables) == {**dict.fromkeys(ends, "ok"), ends[2]: "warn"})
