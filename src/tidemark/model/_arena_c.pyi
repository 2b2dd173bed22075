from tidemark.model._arena_py import Arena as Arena
from tidemark.model._arena_py import Writer as Writer
