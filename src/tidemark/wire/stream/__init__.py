"""The stream protocol on the wire: `frames.py` cuts and writes frames, `rows.py` reads and writes rows in them."""
