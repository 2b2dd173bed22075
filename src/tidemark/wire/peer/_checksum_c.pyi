from tidemark.wire.peer._checksum_py import checksum as checksum
