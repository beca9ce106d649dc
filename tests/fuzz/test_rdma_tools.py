"""What a Mac's tools print about Thunderbolt and RDMA is read without faults, whatever it is."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from chorus.platform.network import rdma
from chorus.transport import cables

KEYS = (
    "SPThunderboltDataType",
    "receptacle_1_tag",
    "receptacle_id_key",
    "domain_uuid_key",
    "_items",
    "current_speed_key",
)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from(["1", "40 Gb/s", "Up to 120 Gb/s"])
    | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=20,
)
lines = st.lists(
    st.text(max_size=30)
    | st.sampled_from(
        ["en2: flags=1<UP>", "\tinet 10.0.0.1 netmask 0xffffff00", "\tinet x netmask y", "\tmember: en2"]
    ),
    max_size=9,
).map("\n".join)


@given(values.map(lambda value: json.dumps({"SPThunderboltDataType": value})) | st.text())
def test_ports_have_an_interface_and_short_names(text: str) -> None:
    for port in rdma.parse_thunderbolt(text, {"en2": "Thunderbolt 1"}):
        assert port.interface == "en2"
        assert len(port.own_end) <= 64
        assert len(port.other_end) <= 64


@given(lines)
def test_addresses_are_addresses(text: str) -> None:
    found = rdma.parse_addresses(text)
    seen = rdma.Rdma("Darwin", addresses=found)
    addresses = rdma.meeting_addresses(seen)
    assert cables.meeting_address(addresses, [addresses]) in (None, *(each.partition("/")[0] for each in addresses))


ports = st.builds(rdma.RdmaPort, *[st.sampled_from("abcdef")] * 3, st.sampled_from(["", "x"]))


@given(st.lists(st.lists(ports, max_size=6).map(tuple), max_size=9), st.booleans())
def test_any_cables_make_a_matrix_that_mlx_can_use_or_a_reason(
    cards: list[tuple[rdma.RdmaPort, ...]], keep: bool
) -> None:
    machines = [cables.Cabled(f"mac{index}", card) for index, card in enumerate(cards)]
    try:
        wiring = cables.wire(machines, keep)
    except cables.NotCabled:
        return
    assert cables.shape_of(wiring.devices) == wiring.shape
    assert sorted(wiring.order) == list(range(len(machines)))
    assert wiring.order[0] == 0
