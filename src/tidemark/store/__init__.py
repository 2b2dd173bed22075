"""The store: messages and wiring on disk, in one directory. See docs/store.md for the formats."""
