"""Why a connection failed, in words that also say what a system's own settings have to do with it."""

from __future__ import annotations

import errno

from chorus.platform import system

LOCAL_NETWORK = (
    "allow python in System Settings > Privacy & Security > Local Network, or install the agent with --daemon, which "
    "needs no permission"
)


def reason(error: OSError) -> str:
    """The error, and on a Mac that says "no route" the setting by which it keeps programs off the local network."""
    if system.is_mac() and error.errno == errno.EHOSTUNREACH:
        return f"{error} (on a Mac this is also how a missing permission shows: {LOCAL_NETWORK})"
    return str(error)
