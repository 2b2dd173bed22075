from tidemark.model._keys_py import key_of as key_of
from tidemark.model._keys_py import row_digest as row_digest
from tidemark.model._keys_py import says_tombstone as says_tombstone
from tidemark.model._keys_py import sip128 as sip128
from tidemark.model._keys_py import slot_of as slot_of
from tidemark.model._keys_py import slot_of_seq as slot_of_seq
