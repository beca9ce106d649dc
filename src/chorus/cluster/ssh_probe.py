"""What a host is and lacks, told by its own interpreter. Sent there as text: the standard library only, any Python 3."""

import importlib.util
import json
import os
import platform
import shutil
import socket
import sys

try:
    from importlib.metadata import PackageNotFoundError, version
except ImportError:  # older than 3.8: too old anyway, but it must be able to say so
    version = None


def port_is_free(port):
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def package_version(name):
    if version is None:
        return None
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def main():
    wanted = json.loads(sys.argv[1])
    home = os.path.expanduser("~")
    print(
        json.dumps(
            {
                "home": home,
                "python": list(sys.version_info[:3]),
                "executable": sys.executable,
                "system": platform.system(),
                "machine": platform.machine(),
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
