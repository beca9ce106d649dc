"""What a host is and lacks, told by its own interpreter. Sent there as text: standard library only, any Python 3."""

import importlib.util
import json
import os
import shutil
import socket
import sys

try:
    import importlib.metadata as metadata
except ImportError:  # older than 3.8: too old anyway, but it must be able to say so
    metadata = None  # type: ignore[assignment]


def port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    # On a Mac that works beside a server which listens on one address alone.
    with socket.socket() as client:
        client.settimeout(0.5)
        return client.connect_ex(("127.0.0.1", port)) != 0


def package_version(name):  # type: ignore[no-untyped-def]
    if metadata is None:
        return None
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def main() -> None:
    wanted = json.loads(sys.argv[1])
    home = os.path.expanduser("~")
    print(
        json.dumps(
            {
                "home": home,
                "python": list(sys.version_info[:3]),
                "host": socket.gethostname(),
                "modules": [name for name in wanted["modules"] if importlib.util.find_spec(name) is None],
                "versions": {name: package_version(name) for name in wanted["packages"]},
                "taken": [port for port in wanted["ports"] if not port_is_free(port)],
                "disk_free": shutil.disk_usage(home).free,
                "writable": os.access(home, os.W_OK),
            }
        )
    )


if __name__ == "__main__":
    main()
