"""What members of a cluster say to one another: `handshake.py` opens a link, `codec.py` is everything after it."""
