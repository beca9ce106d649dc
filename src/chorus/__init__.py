"""Chorus: many machines, one voice."""

import os

__version__ = "0.1.0"

# gRPC for Python takes no least version of TLS. With suites for RSA keys only, and our keys being elliptic curves, an
# older handshake finds nothing in common; TLS 1.3 has suites of its own. Read once, when grpc is first imported.
os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-RSA-AES128-GCM-SHA256"
# gRPC's own resolver knows no .local names; the system's does.
os.environ.setdefault("GRPC_DNS_RESOLVER", "native")
