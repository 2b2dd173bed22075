"""`tidemark doctor`: everything that is known to make a broker slow, unsafe or dead, looked at from outside.

A check is a function that yields findings; `machine`, `store`, `settings`, `network`, `tls` and `broker` have the
checks, `command` runs them. Nothing is changed, and a check that breaks is a finding itself.
"""
