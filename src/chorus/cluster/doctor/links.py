"""The links that ranks use, as they are now beside what the plan assumed of them: facts, and the checks on them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from chorus.cluster.doctor.finding import Check, Finding
from chorus.cluster.profile.assumed import AssumedLink
from chorus.cluster.profile.links import Probe, bits
from chorus.platform.network.links import Address

SLOWER = 0.5
"""Of what was assumed: measurements over TLS, beside a model that computes, differ by less than this."""
LATER = 2.0
ROUND_TRIP_SLACK = 0.002
"""Seconds by which a round trip may grow whatever it was: a busy machine answers later."""
SLOW_PORT = 1_000_000_000
"""Bits per second: no port of a machine that serves models is sold with less."""


@dataclass(frozen=True)
class LinkFacts:
    sender: str
    receiver: str
    assumed: AssumedLink
    now: Probe
    ends: tuple[Address, ...] = ()
    """What the two machines say of the addresses that the link goes by."""


def speed(link: LinkFacts) -> list[Finding]:
    now, assumed = link.now, link.assumed
    if now.problem:
        fix = "plug the cable in, let the port through any firewall, or leave one of the two machines out"
        return [Finding("link", f"{assumed.ip} does not answer: {now.problem}", "error", fix)]
    if assumed.bandwidth is None or not now.bandwidth:
        return []
    value = f"{bits(now.bandwidth)} now, the plan assumes {bits(assumed.bandwidth)}"
    if now.bandwidth < SLOWER * assumed.bandwidth:
        return [Finding("link", value, "warn", slow_fix(link))]
    return [Finding("link", value)]


def round_trip(link: LinkFacts) -> list[Finding]:
    now, assumed = link.now, link.assumed
    if now.problem or not assumed.round_trip:
        return []
    value = f"{now.round_trip * 1e3:.2f} ms now, {assumed.round_trip * 1e3:.2f} ms when the model was divided"
    if now.round_trip > LATER * assumed.round_trip + ROUND_TRIP_SLACK:
        fix = "look for other traffic on this link, power saving of Wi-Fi, and programs that keep a machine busy"
        return [Finding("round trip", value, "warn", fix)]
    return [Finding("round trip", value)]


def port(link: LinkFacts) -> Iterator[Finding]:
    """What the machines themselves say of their end: a damaged cable makes a port of 1 Gbit/s one of 100 Mbit/s."""
    slow = [end for end in link.ends if end.kind == "ethernet" and 0 < end.bits_per_second < SLOW_PORT]
    for end in slow:
        value = f"{end.interface or end.ip} runs at {bits(end.bits_per_second / 8)}"
        yield Finding("port", value, "warn", "change the cable, or the switch: one of 1 Gbit/s needs all eight wires")


def slow_fix(link: LinkFacts) -> str:
    again = "if it is to stay so, start the server again: it measures its links then"
    match link.assumed.kind:
        case "wifi":
            return f"use a cable instead of Wi-Fi, or bring the machines nearer to the access point; {again}"
        case "thunderbolt":
            return f"plug the cable in anew, and see that it is one for Thunderbolt; {again}"
        case "vpn":
            return f"reach the nodes without the VPN; {again}"
        case _:
            return f"check the cable and the switch, and what else uses them; is it Wi-Fi instead of Ethernet? {again}"


CHECKS: tuple[Check[LinkFacts], ...] = (
    Check("link", "a link that is down, or less than half as fast as the plan assumes", speed),
    Check("round trip", "answers that take more than twice as long as when the model was divided", round_trip),
    Check("port", "an Ethernet port that runs at less than 1 Gbit/s", port),
)
