from tidemark.runtime._disk_py import Flusher as Flusher
