"""Which patterns of a topic exchange match a routing key.

A key is words with dots between them; the empty key has no words, and words may be empty. In a pattern `*`
stands for one word, `#` for any number of them. Patterns share a tree with one edge a word:

    a.*.c  a.#     root ─a─► 1 ─*─► 2 ─c─► 3 (a.*.c)
                             └─#─► 4 (a.#)

A key walks it word by word with the set of all nodes it may be at, so the cost is at most words × nodes
however the patterns are nested, and no pattern makes a key expensive on purpose.

Invariant: a node without a value and without children is not in the tree, but for the root.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value", bound=Hashable)


def words_of(key: str) -> list[str]:
    return key.split(".") if key else []


class _Node(Generic[Value]):
    __slots__ = ("any_words", "children", "values")

    def __init__(self, any_words: bool) -> None:
        self.any_words = any_words
        """The edge to this node is `#`: every further word leads here again."""
        self.children: dict[str, _Node[Value]] = {}
        self.values: dict[Value, None] = {}


class TopicTree(Generic[Value]):
    def __init__(self) -> None:
        self._root: _Node[Value] = _Node(any_words=False)

    def __bool__(self) -> bool:
        return bool(self._root.children or self._root.values)

    def add(self, pattern: str, value: Value) -> None:
        node = self._root
        for word in words_of(pattern):
            child = node.children.get(word)
            if child is None:
                child = node.children[word] = _Node(any_words=word == "#")
            node = child
        node.values[value] = None

    def remove(self, pattern: str, value: Value) -> None:
        """Take out what `add` put in.

        Raises:
            KeyError: it is not there.
        """
        path, node = [], self._root
        for word in words_of(pattern):
            path.append((node, word))
            node = node.children[word]
        del node.values[value]
        for parent, word in reversed(path):
            if node.values or node.children:
                break
            del parent.children[word]
            node = parent

    def match(self, key: str) -> list[Value]:
        """The values of all patterns that match, each once, in no order."""
        at = self._reached([self._root])
        for word in words_of(key):
            if not at:
                return []
            after = []
            for node in at:
                if node.any_words:
                    after.append(node)
                if (child := node.children.get(word)) is not None:
                    after.append(child)
                if word != "*" and (child := node.children.get("*")) is not None:
                    after.append(child)
            at = self._reached(after)
        return list(dict.fromkeys(value for node in at for value in node.values))

    @staticmethod
    def _reached(nodes: list[_Node[Value]]) -> dict[_Node[Value], None]:
        """These nodes and those that `#` leads to without a word."""
        reached = dict.fromkeys(nodes)
        for node in nodes:
            child = node.children.get("#")
            while child is not None and child not in reached:
                reached[child] = None
                child = child.children.get("#")
        return reached
