"""SHELL. The only place with asyncio, sockets, files, clocks and threads. It carries; it does not decide."""
