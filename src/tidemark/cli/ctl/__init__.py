"""`tidemark ctl`: manage a running broker through its management API.

One module a noun; `app` puts them together. Each command is one call. Lists print a table, or everything with `--json`.
"""
