"""Keys, slots and hashes of stream messages. This module only picks the implementation."""

from tidemark.model._keys_py import DIGEST_KEY, DIGEST_MASK, HEADER, LOG, MESSAGE_ID, NO_KEY, ROUTING_KEY
from tidemark.speed import PURE

if PURE:
    from tidemark.model._keys_py import key_of, row_digest, says_tombstone, sip128, slot_of, slot_of_seq
else:
    from tidemark.model._keys_c import key_of, row_digest, says_tombstone, sip128, slot_of, slot_of_seq

__all__ = [
    "DIGEST_KEY",
    "DIGEST_MASK",
    "HEADER",
    "LOG",
    "MESSAGE_ID",
    "NO_KEY",
    "ROUTING_KEY",
    "key_of",
    "row_digest",
    "says_tombstone",
    "sip128",
    "slot_of",
    "slot_of_seq",
]
