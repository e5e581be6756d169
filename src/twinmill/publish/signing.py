"""Ed25519 over manifests and shortcuts: who wrote them. They name every object by its BLAKE3, so all bytes are covered.

Optional, and off by default. Needs the package `cryptography` (pip install 'twinmill[sign]'). Keys are the 32 raw bytes.
"""

from typing import TypeVar

from blake3 import blake3
from msgspec import structs

from twinmill.records import wire
from twinmill.records.weights import Shortcut, Signature, WeightVersion

from .errors import Refused

Signed = TypeVar("Signed", WeightVersion, Shortcut)


def new_key() -> bytes:
    """A private key."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.generate().private_bytes_raw()


class Signer:
    def __init__(self, private: bytes) -> None:
        """ImportError without the package, ValueError for bytes that are no key."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        self._key = Ed25519PrivateKey.from_private_bytes(private)
        self.public = self._key.public_key().public_bytes_raw()

    def sign(self, record: Signed) -> Signed:
        signature = Signature(key_id=_key_id(self.public), hex=self._key.sign(_message(record)).hex())
        return structs.replace(record, signature=signature)


class Verifier:
    def __init__(self, public: bytes) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        self._key = Ed25519PublicKey.from_public_bytes(public)
        self._key_id = _key_id(public)

    def check(self, record: WeightVersion | Shortcut, what: str) -> None:
        """Refused unless `record` is signed with the key."""
        from cryptography.exceptions import InvalidSignature

        signature = record.signature
        if signature is None or signature.key_id != self._key_id:
            by = "is not signed" if signature is None else f"is signed with key {signature.key_id}"
            raise Refused(f"{what} {by}; this reader trusts only key {self._key_id}")
        try:
            self._key.verify(bytes.fromhex(signature.hex), _message(record))
        except (InvalidSignature, ValueError):
            raise Refused(f"{what} was changed after it was signed; nothing of it was read") from None


def _message(record: WeightVersion | Shortcut) -> bytes:
    return wire.pack(structs.replace(record, signature=None))


def _key_id(public: bytes) -> str:
    return blake3(public).hexdigest()[:16]
