"""The list of expelled nodes, signed by the cluster's authority: any member may pass it on, and none can make one.

Lists are numbered, and a member never goes back to an earlier one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from chorus.errors import ChorusError


class BadList(ChorusError, ValueError):
    """Not a list that this cluster's authority signed."""


@dataclass(frozen=True)
class Expelled:
    number: int = 0
    ids: frozenset[str] = frozenset()

    def signed(self, key: ec.EllipticCurvePrivateKey) -> str:
        signature = key.sign(self._content(), ec.ECDSA(hashes.SHA256()))
        return json.dumps({"number": self.number, "ids": sorted(self.ids), "signature": signature.hex()})

    def _content(self) -> bytes:
        return json.dumps(["chorus expelled", self.number, sorted(self.ids)]).encode()

    @classmethod
    def read(cls, text: str, authority: x509.Certificate) -> Expelled:
        """Raises BadList where the authority has not signed it."""
        if not text:
            return cls()
        public = authority.public_key()
        assert isinstance(public, ec.EllipticCurvePublicKey)
        try:
            match json.loads(text):
                case {"number": int(number), "ids": [*ids], "signature": str(signature)}:
                    found = cls(number, frozenset(map(str, ids)))
                    public.verify(bytes.fromhex(signature), found._content(), ec.ECDSA(hashes.SHA256()))
                    return found
        except (InvalidSignature, ValueError, RecursionError):
            pass
        raise BadList("a list of expelled nodes that the cluster's authority has not signed")
