"""Whether the compiled twins are in use. `TIDEMARK_PURE=1` chooses the plain Python ones."""

import os

PURE = os.environ.get("TIDEMARK_PURE", "") not in ("", "0")
