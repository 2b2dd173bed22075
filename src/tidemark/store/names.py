"""Names of files that somebody needs to know before the rest of the store is imported."""

from typing import Final

CHECKPOINT_PREFIX: Final = "ckpt-"
