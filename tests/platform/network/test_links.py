"""What each address of a machine is an end of, as its system says."""

from __future__ import annotations

from pathlib import Path

import pytest

from chorus.platform import system
from chorus.platform.network import links
from chorus.platform.network.links import Address
from tests.support.interfaces import play

PORTS = """
Hardware Port: Ethernet
Device: en0
Ethernet Address: 00:00:00:00:00:01

Hardware Port: Wi-Fi
Device: en1
Ethernet Address: 00:00:00:00:00:02

Hardware Port: Thunderbolt 1
Device: en2
Ethernet Address: 00:00:00:00:00:03

Hardware Port: Thunderbolt 2
Device: en3
Ethernet Address: 00:00:00:00:00:04

Hardware Port: Thunderbolt Bridge
Device: bridge0
Ethernet Address: 00:00:00:00:00:03

Hardware Port: Thunderbolt Ethernet Slot 1
Device: en8
Ethernet Address: 00:00:00:00:00:05

VLAN Configurations
===================
"""
SETTINGS = """lo0: flags=8049<UP,LOOPBACK,RUNNING,MULTICAST> mtu 16384
\tinet 127.0.0.1 netmask 0xff000000
en0: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500
\tinet 192.168.1.20 netmask 0xffffff00 broadcast 192.168.1.255
\tmedia: autoselect (10Gbase-T <full-duplex,flow-control>)
\tstatus: active
en1: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500
\tinet 192.168.1.21 netmask 0xffffff00 broadcast 192.168.1.255
\tmedia: autoselect
\tstatus: active
en2: flags=8963<UP,BROADCAST,SMART,RUNNING,PROMISC,SIMPLEX,MULTICAST> mtu 1500
\tmedia: autoselect <full-duplex>
\tstatus: active
bridge0: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500
\tmember: en2 flags=3<LEARNING,DISCOVER>
\tmember: en3 flags=3<LEARNING,DISCOVER>
\tinet 169.254.44.7 netmask 0xffff0000 broadcast 169.254.255.255
bridge100: flags=8a63<UP,BROADCAST,SMART,RUNNING,ALLMULTI,SIMPLEX,MULTICAST> mtu 1500
\tmember: vmenet0 flags=3<LEARNING,DISCOVER>
\tinet 192.168.64.1 netmask 0xffffff00 broadcast 192.168.64.255
utun4: flags=8051<UP,POINTOPOINT,RUNNING,MULTICAST> mtu 1380
\tinet 100.64.0.7 --> 100.64.0.7 netmask 0xffffffff
en8: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500
\tinet 10.0.5.1 netmask 0xffffff00 broadcast 10.0.5.255
\tmedia: autoselect (1000baseT <full-duplex>)
"""
ADDRESSES = {
    "lo0": "127.0.0.1",
    "utun4": "100.64.0.7",
    "bridge100": "192.168.64.1",
    "en1": "192.168.1.21",
    "en0": "192.168.1.20",
    "bridge0": "169.254.44.7",
    "en8": "10.0.5.1",
    "en5": "10.9.9.9",
}


def test_a_mac_tells_its_cables_apart_and_the_quickest_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, ADDRESSES, down=("en5",))
    told = {"networksetup": PORTS, "ifconfig": SETTINGS}
    monkeypatch.setattr(system, "name", lambda: "Darwin")
    monkeypatch.setattr(system, "tool_output", lambda *command, **_: told.get(command[0]))
    assert links.addresses() == (
        Address("169.254.44.7", "bridge0", "thunderbolt"),
        Address("192.168.1.20", "en0", "ethernet", 10_000_000_000),
        Address("10.0.5.1", "en8", "ethernet", 1_000_000_000),
        Address("192.168.1.21", "en1", "wifi"),
        Address("192.168.64.1", "bridge100", "bridge"),
        Address("100.64.0.7", "utun4", "vpn"),
    )


def test_a_thunderbolt_port_outside_the_bridge_is_the_cable_itself() -> None:
    assert links.mac_kind("en3", PORTS, SETTINGS) == "thunderbolt"


def test_a_mac_whose_tools_are_silent_still_has_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, {"en0": "192.168.1.20", "utun4": "100.64.0.7"})
    monkeypatch.setattr(system, "name", lambda: "Darwin")
    monkeypatch.setattr(system, "tool_output", lambda *_, **__: None)
    assert [address.ip for address in links.addresses()] == ["192.168.1.20", "100.64.0.7"]


def test_a_machine_without_a_network_has_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, {"lo": "127.0.0.1", "eth0": "10.0.0.1"}, down=("eth0",))
    assert links.addresses() == (Address("127.0.0.1", "", "loopback"),)


@pytest.fixture
def net(tmp_path: Path) -> Path:
    """/sys/class/net of a machine with everything."""

    def made(name: str, number: int, *folders: str, driver: str = "", speed: str = "") -> None:
        folder = tmp_path / name
        for inner in ("", *folders):
            (folder / inner).mkdir(parents=True, exist_ok=True)
        (folder / "type").write_text(f"{number}\n")
        if speed:
            (folder / "speed").write_text(f"{speed}\n")
        if driver:
            (tmp_path / "drivers" / driver).mkdir(parents=True)
            (folder / "device").mkdir(exist_ok=True)
            (folder / "device" / "driver").symlink_to(tmp_path / "drivers" / driver)

    made("lo", 772)
    made("eth0", 1, driver="igb", speed="2500")
    made("virtual0", 1, driver="virtio_net", speed="-1")
    made("veth0", 1, speed="10000")
    made("wlan0", 1, "wireless", driver="iwlwifi")
    made("thunderbolt0", 1, driver="thunderbolt-net")
    made("docker0", 1, "bridge", "brif/veth0")
    made("br0", 1, "bridge", "brif/eth0", "brif/veth0")
    made("wg0", 65534)
    made("tap0", 1)
    (tmp_path / "tap0" / "tun_flags").write_text("0x1002\n")
    return tmp_path


def test_linux_says_what_an_interface_is_by_its_folder(net: Path) -> None:
    names = sorted(folder.name for folder in net.iterdir() if folder.name != "drivers")
    assert {name: links.linux_kind(net / name) for name in names} == {
        "br0": "ethernet",
        "docker0": "bridge",
        "eth0": "ethernet",
        "lo": "loopback",
        "tap0": "vpn",
        "thunderbolt0": "thunderbolt",
        "veth0": "ethernet",
        "virtual0": "ethernet",
        "wg0": "vpn",
        "wlan0": "wifi",
    }
    assert links.linux_kind(net / "gone") == "ethernet"
    assert {name: speed for name in names if (speed := links.linux_speed(net / name))} == {"eth0": 2_500_000_000}
