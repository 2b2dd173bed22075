"""What members of a cluster say to one another: `handshake.py` opens a link, `codec.py` is everything after it.

`wiring.py` is what main's leader says to fronts that keep a copy of its wiring."""
