"""RDMA over Thunderbolt: what the tools print is understood, and every problem comes with its remedy."""

from __future__ import annotations

import os
import platform
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chorus.cli.doctor import wanted_of
from chorus.cluster.doctor.finding import Finding
from chorus.cluster.doctor.rdma import WantedRdma, rdma_findings
from chorus.config.sources import load_settings
from chorus.platform.network import rdma
from chorus.platform.network.rdma import Rdma

DEVICES = """\
    device          \t   node GUID
    ------          \t----------------
    rdma_en2        \te0c5797d9c8fac05
    rdma_en3        \te1c5797d9c8fac05
"""
PORTS = """\
hca_id:\trdma_en2
\ttransport:\t\t\tThunderbolt (100)
\tfw_ver:\t\t\t\t0
\tphys_port_cnt:\t\t\t1
\t\tport:\t1
\t\t\tstate:\t\t\tPORT_ACTIVE (4)
\t\t\tmax_mtu:\t\t4096 (5)

hca_id:\trdma_en3
\ttransport:\t\t\tThunderbolt (100)
\tphys_port_cnt:\t\t\t1
\t\tport:\t1
\t\t\tstate:\t\t\tPORT_DOWN (1)
"""
INTERFACES = """
Hardware Port: Ethernet
Device: en0
Ethernet Address: 00:11:22:33:44:55

Hardware Port: Thunderbolt Bridge
Device: bridge0
Ethernet Address: 36:00:00:00:00:00

Hardware Port: Thunderbolt 1
Device: en2
Ethernet Address: 36:00:00:00:00:01

Hardware Port: Thunderbolt 2
Device: en3
Ethernet Address: 36:00:00:00:00:02
"""
IFCONFIG = """\
lo0: flags=8049<UP,LOOPBACK,RUNNING,MULTICAST> mtu 16384
\tinet 127.0.0.1 netmask 0xff000000
en2: flags=8963<UP,BROADCAST,SMART,RUNNING,PROMISC,SIMPLEX,MULTICAST> mtu 1500
\tstatus: active
bridge0: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500
\tConfiguration:
\t\tid 0:0:0:0:0:0 priority 0 hellotime 0 fwddelay 0
\tmember: en2 flags=3<LEARNING,DISCOVER>
\t        ifmaxaddr 0 port 9 priority 0 path cost 0
\tmember: en3 flags=3<LEARNING,DISCOVER>
\tstatus: active
bridge100: flags=8822<BROADCAST,SMART,SIMPLEX,MULTICAST> mtu 1500
\tmember: en4 flags=3<LEARNING,DISCOVER>
"""
THUNDERBOLT = """{"SPThunderboltDataType": [
{"_name": "thunderboltusb4_bus_0", "device_name_key": "Mac mini", "domain_uuid_key": "aaaa-1",
 "receptacle_1_tag": {"current_speed_key": "80 Gb/s", "receptacle_id_key": "1", "link_status_key": "0x2",
  "receptacle_status_key": "receptacle_connected"},
 "_items": [{"_name": "Mac mini", "device_name_key": "Mac16,11", "domain_uuid_key": "bbbb-2"}]},
{"_name": "thunderboltusb4_bus_1", "device_name_key": "Mac mini",
 "receptacle_1_tag": {"current_speed_key": "Up to 120 Gb/s", "receptacle_id_key": "2",
  "receptacle_status_key": "receptacle_no_devices_connected"}}
]}
"""

MAC = Rdma(
    "Darwin",
    (26, 3),
    ("rdma_en2", "rdma_en3"),
    True,
    {"rdma_en2": "PORT_ACTIVE", "rdma_en3": "PORT_DOWN"},
    {"en2": "Thunderbolt 1", "en3": "Thunderbolt 2"},
)
WANTED = WantedRdma(0, (None, "rdma_en2"), "10.0.0.1:32323")


def by_name(found: list[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in found}


def test_devices_are_read_from_their_list() -> None:
    assert rdma.parse_devices(DEVICES) == ("rdma_en2", "rdma_en3")
    assert rdma.parse_devices("    device    node GUID\n    ------    ---------\n") == ()
    assert rdma.parse_devices("mlx5_0 58a2:e103:002a:09b8\n") == ("mlx5_0",)
    assert rdma.parse_devices("Failed to get IB devices list") == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [("enabled\n", True), ("disabled\n", False), ("RDMA is disabled", False), ("", None), ("unknown command", None)],
)
def test_the_status_is_a_word(text: str, expected: bool | None) -> None:
    assert rdma.parse_status(text) is expected


def test_each_port_has_a_state() -> None:
    assert rdma.parse_ports(PORTS) == {"rdma_en2": "PORT_ACTIVE", "rdma_en3": "PORT_DOWN"}
    assert rdma.parse_ports("") == {}


def test_interfaces_have_the_names_that_are_printed_on_the_case() -> None:
    assert rdma.parse_interfaces(INTERFACES)["en3"] == "Thunderbolt 2"


def test_only_bridges_that_are_up_count() -> None:
    assert rdma.parse_bridges(IFCONFIG) == {"bridge0": ("en2", "en3")}
    assert rdma.parse_bridges("") == {}


def test_a_mac_that_is_ready_says_what_each_port_is() -> None:
    found = by_name(rdma_findings(MAC))
    assert found["RDMA"] == Finding("RDMA", "enabled, with rdma_en2, rdma_en3")
    assert found["rdma_en2"].value == "Thunderbolt 1 (en2), port active"
    assert found["rdma_en3"].value == "Thunderbolt 2 (en3), port down: nothing connected to it"
    assert all(finding.status == "ok" for finding in found.values())


@pytest.mark.parametrize(
    ("changes", "value", "fix"),
    [
        ({"macos": (15, 7)}, "macOS 15.7 has none", "update this Mac to macOS 26.2"),
        ({"devices": None}, "ibv_devices is not there", "update this Mac"),
        ({"devices": (), "silent": ("ibv_devices",)}, "did not answer in time", "restart"),
        ({"enabled": False, "devices": ()}, "disabled", "Recovery Mode, run `rdma_ctl enable`"),
        ({"enabled": None, "devices": ()}, "shows no devices", "Recovery Mode, run `rdma_ctl enable`"),
        ({"devices": ()}, "enabled, but no devices", "needs Thunderbolt 5"),
        ({"system": "Linux", "devices": ("mlx5_0",)}, "macOS only; ibv_devices shows mlx5_0", "--transport mpi"),
        ({"system": "Linux", "devices": ()}, "macOS only; ibv_devices shows no devices", "--transport mpi"),
        ({"system": "Linux", "devices": None}, "macOS only; no ibv_devices here", "--transport mpi"),
    ],
)
def test_what_is_in_the_way_is_a_fault_only_where_jaccl_is_wanted(
    changes: dict[str, Any], value: str, fix: str
) -> None:
    seen = replace(MAC, **changes)
    wanted, unasked = (by_name(rdma_findings(seen, wish))["RDMA"] for wish in (WANTED, None))
    assert value in wanted.value
    assert fix in wanted.fix
    assert "\n" not in wanted.fix
    assert (wanted.status, unasked.status) == ("error", "ok")


def test_a_port_that_is_needed_and_down_is_a_warning() -> None:
    found = by_name(rdma_findings(MAC, replace(WANTED, devices=(None, "rdma_en3"))))
    assert found["rdma_en3"].status == "warn"
    assert "RDMA enabled too" in found["rdma_en3"].fix


def test_a_thunderbolt_bridge_over_the_ports_is_a_warning() -> None:
    bridged = by_name(rdma_findings(replace(MAC, bridges={"bridge0": ("en2", "en9")})))["Thunderbolt bridge"]
    assert (bridged.value, bridged.status) == ("bridge0 holds en2", "warn")
    assert "sudo ifconfig bridge0 deletem en2" in bridged.fix
    assert "IPv4 address" in bridged.fix
    assert "Thunderbolt bridge" not in by_name(rdma_findings(replace(MAC, bridges={"bridge0": ("en9",)})))


def test_devices_that_the_hostfile_names_and_the_machine_lacks_are_named() -> None:
    several = WantedRdma(1, ("rdma_en2", None, ("rdma_en7", "rdma_en3"), "rdma_en8"), "a:1")
    found = by_name(rdma_findings(MAC, several))["jaccl devices"]
    assert found.value == "rdma_en7, rdma_en8, named for rank 1, not on this machine (here: rdma_en2, rdma_en3)"
    assert found.status == "error"
    assert by_name(rdma_findings(MAC, WANTED))["jaccl devices"].value == "rank 0 uses rdma_en2"


def test_jaccl_without_devices_rank_or_meeting_place_says_what_to_give() -> None:
    assert "mlx.distributed_config" in by_name(rdma_findings(MAC, WantedRdma(0, (), "a:1")))["jaccl devices"].fix
    assert "--rank" in by_name(rdma_findings(MAC, WantedRdma(None)))["jaccl devices"].fix
    assert "MLX_JACCL_COORDINATOR" in by_name(rdma_findings(MAC, WantedRdma(0, ())))["jaccl coordinator"].fix


HOSTS = (
    '{"backend": "jaccl", "hosts": [{"ssh": "a", "ips": ["10.0.0.1"], "rdma": [null, "rdma_en2"]},'
    ' {"ssh": "b", "ips": ["10.0.0.2"], "rdma": ["rdma_en5", null]}]}'
)
MATRIX = '[[null, "rdma_en2"], ["rdma_en5", null]]'


def wanted_by(file: Path, names: set[str], rank: int | None = None, **variables: str) -> WantedRdma | None:
    settings = load_settings(file, {"cluster": {"rank": rank}}, environment=variables)
    return wanted_of(settings, names)


def test_the_hostfile_tells_this_machines_devices_by_address_or_by_rank(tmp_path: Path) -> None:
    (tmp_path / "hosts.json").write_text(HOSTS)
    (tmp_path / "matrix.json").write_text(MATRIX)
    by_address = wanted_by(tmp_path / "hosts.json", {"10.0.0.2"})
    assert by_address == WantedRdma(1, ("rdma_en5", None), "10.0.0.1, at a port that rank 0 chooses")
    elsewhere = wanted_by(tmp_path / "hosts.json", {"10.0.0.9"})
    assert elsewhere is not None
    assert elsewhere.rank is None
    assert wanted_by(tmp_path / "matrix.json", set(), 0) == WantedRdma(0, (None, "rdma_en2"), None)
    meeting = wanted_by(tmp_path / "matrix.json", set(), 0, MLX_JACCL_COORDINATOR="10.0.0.1:9")
    assert meeting == WantedRdma(0, (None, "rdma_en2"), "10.0.0.1:9")


def test_nothing_is_wanted_where_another_transport_is_chosen(tmp_path: Path) -> None:
    (tmp_path / "hosts.json").write_text(HOSTS.replace('"jaccl"', '"ring"'))
    assert wanted_by(tmp_path / "hosts.json", {"10.0.0.2"}) is None


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing on it but what the test puts there, on what claims to be a new Mac."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    # What Python says of macOS 26 where it was built with an older SDK.
    monkeypatch.setattr(platform, "mac_ver", lambda: ("16.0", ("", "", ""), "arm64"))
    put(tmp_path, "sysctl", "26.2\n", expecting="-n")
    return tmp_path


def put(folder: Path, name: str, text: str, *, expecting: str = "", before: str = "") -> None:
    """A program that prints a text, if it is called with the argument that is expected."""
    (folder / f"{name}.txt").write_text(text)
    script = f'#!/bin/sh\n{before}\n[ "$1" = "{expecting}" ] || exit 3\n'
    script += f'while IFS= read -r line; do printf "%s\\n" "$line"; done < {folder}/{name}.txt\n'
    (folder / name).write_text(script)
    (folder / name).chmod(0o755)


def test_every_tool_is_asked(tools: Path) -> None:
    put(tools, "ibv_devices", DEVICES)
    put(tools, "ibv_devinfo", PORTS)
    put(tools, "rdma_ctl", "enabled\n", expecting="status")
    put(tools, "networksetup", INTERFACES, expecting="-listallhardwareports")
    put(tools, "ifconfig", IFCONFIG)
    put(tools, "system_profiler", THUNDERBOLT, expecting="SPThunderboltDataType")
    seen = rdma.look()
    assert seen == Rdma(
        "Darwin",
        (26, 2),
        ("rdma_en2", "rdma_en3"),
        True,
        {"rdma_en2": "PORT_ACTIVE", "rdma_en3": "PORT_DOWN"},
        rdma.parse_interfaces(INTERFACES),
        {"bridge0": ("en2", "en3")},
        (),
        {"lo0": ("127.0.0.1/8",)},
        (rdma.ThunderboltPort("en2", "AAAA-1", "BBBB-2", 80), rdma.ThunderboltPort("en3", gigabits=120)),
    )
    assert "bridge0 holds en2, en3" in by_name(rdma_findings(seen))["Thunderbolt bridge"].value


def test_a_mac_without_any_of_the_tools_is_told_what_to_do(tools: Path) -> None:
    seen = rdma.look()
    assert (seen.devices, seen.enabled, seen.ports) == (None, None, {})
    assert by_name(rdma_findings(seen))["RDMA"].value == "not available: ibv_devices is not there"


def test_a_tool_that_hangs_is_left_after_the_deadline_and_named(tools: Path) -> None:
    put(tools, "ibv_devices", DEVICES, before=f"exec {os.path.realpath('/bin/sleep')} 60")
    put(tools, "rdma_ctl", "enabled\n", expecting="status")
    seen = rdma.look(seconds=0.5)
    assert seen.silent == ("ibv_devices",)
    assert "did not answer in time" in by_name(rdma_findings(seen))["RDMA"].value


def test_linux_asks_for_devices_alone(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    put(tools, "ibv_devices", "mlx5_0 58a2e103002a09b8\n")
    put(tools, "rdma_ctl", "enabled\n", expecting="status")
    assert rdma.look() == Rdma("Linux", devices=("mlx5_0",))


def test_owners_of_thunderbolt_4_are_not_sent_to_recovery(tools: Path) -> None:
    put(tools, "ibv_devices", DEVICES)
    put(tools, "ibv_devinfo", PORTS.replace("PORT_ACTIVE", "PORT_DOWN"))
    put(tools, "rdma_ctl", "disabled\n", expecting="status")
    put(tools, "networksetup", INTERFACES, expecting="-listallhardwareports")
    slow = THUNDERBOLT.replace("80 Gb/s", "40 Gb/s").replace("Up to 120 Gb/s", "Up to 40 Gb/s")
    put(tools, "system_profiler", slow, expecting="SPThunderboltDataType")
    found = rdma_findings(rdma.look(), WANTED)
    assert [finding for finding in found if "Recovery" in finding.fix] == []
    assert "needs Thunderbolt 5" in by_name(found)["RDMA"].fix


ADDRESSED = """\
en0: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500
\tinet 192.168.1.5 netmask 0xffffff00 broadcast 192.168.1.255
en2: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500
\tinet6 fe80::1%en2 prefixlen 64 scopeid 0x8
"""


def on_a_cabled_mac(tools: Path, ifconfig: str) -> Rdma:
    put(tools, "ibv_devices", DEVICES)
    put(tools, "ibv_devinfo", PORTS)
    put(tools, "rdma_ctl", "enabled\n", expecting="status")
    put(tools, "networksetup", INTERFACES, expecting="-listallhardwareports")
    put(tools, "ifconfig", ifconfig)
    put(tools, "system_profiler", THUNDERBOLT, expecting="SPThunderboltDataType")
    return rdma.look()


def test_a_port_without_an_address_of_its_own_is_a_warning(tools: Path) -> None:
    found = by_name(rdma_findings(on_a_cabled_mac(tools, ADDRESSED)))["rdma_en2"]
    assert (found.value, found.status) == ("Thunderbolt 1 (en2), port active, without an IPv4 address", "warn")
    assert "add a service for Thunderbolt 1" in found.fix


def test_a_cable_is_told_by_both_its_ends_and_what_is_in_its_way(tools: Path) -> None:
    own = "\tinet 10.0.1.1 netmask 0xfffffffc broadcast 10.0.1.3\n"
    ready = on_a_cabled_mac(tools, ADDRESSED + own)
    assert rdma.ports(ready) == (rdma.RdmaPort("rdma_en2", "AAAA-1", "BBBB-2"),)
    assert rdma.meeting_addresses(ready) == ("192.168.1.5/24", "10.0.1.1/30")
    assert rdma.ports(replace(ready, addresses={}))[0].obstacle == "en2 has no IPv4 address"
    assert rdma.ports(replace(ready, bridges={"bridge0": ("en2",)}))[0].obstacle == "en2 is a member of bridge0"
    assert rdma.ports(replace(ready, ports={}))[0].obstacle == "its port is not active"
    slow = (replace(ready.thunderbolt[0], gigabits=40),)
    assert "40 Gbit/s" in rdma.ports(replace(ready, thunderbolt=slow))[0].obstacle


def test_meeting_over_thunderbolt_is_a_warning(tools: Path) -> None:
    seen = on_a_cabled_mac(tools, ADDRESSED + "\tinet 10.0.1.1 netmask 0xfffffffc broadcast 10.0.1.3\n")
    for place, status in (("10.0.1.2:5000", "warn"), ("10.0.1.2, at a port", "warn"), ("192.168.1.9:5000", "ok")):
        found = by_name(rdma_findings(seen, replace(WANTED, coordinator=place)))["jaccl coordinator"]
        assert (place, found.status) == (place, status)


def test_variables_that_mlx_would_read_are_told() -> None:
    found = by_name(rdma_findings(MAC, variables={"MLX_METAL_FAST_SYNCH": "1", "JACCL_RANK": "0"}))
    assert "unreliable" in found["MLX_METAL_FAST_SYNCH"].fix
    assert found["JACCL_RANK"].status == "warn"


@pytest.mark.parametrize(
    "text",
    ["", "no json", "[]", "{}", '{"SPThunderboltDataType": 3}', '{"SPThunderboltDataType": [3, {}]}', "[" * 10**5],
)
def test_a_tool_that_answers_nonsense_names_no_ports(text: str) -> None:
    assert rdma.parse_thunderbolt(text, {"en2": "Thunderbolt 1"}) == ()
