"""Tied tensors: union-find with one root a group."""

from __future__ import annotations


class Groups:
    """Tensors that share one scale and zero point; the root is the member that came first."""

    def __init__(self) -> None:
        self._parent: dict[str, str] = {}
        self._order: dict[str, int] = {}

    def root(self, tensor: str) -> str:
        """Root of the group of `tensor`; itself where it shares with no other."""
        self._order.setdefault(tensor, len(self._order))
        parent = self._parent.setdefault(tensor, tensor)
        while parent != self._parent[parent]:
            self._parent[parent] = self._parent[self._parent[parent]]
            parent = self._parent[parent]
        self._parent[tensor] = parent
        return parent

    def join(self, first: str, second: str) -> None:
        """Put both tensors into one group."""
        roots = sorted((self.root(first), self.root(second)), key=lambda t: self._order[t])
        self._parent[roots[1]] = roots[0]

    def members(self) -> dict[str, list[str]]:
        """Groups of at least two tensors, by root, in order of appearance."""
        found: dict[str, list[str]] = {}
        for tensor in self._order:
            found.setdefault(self.root(tensor), []).append(tensor)
        return {root: tensors for root, tensors in found.items() if len(tensors) > 1}
