"""Which values may share memory, and which of them are written (the third condition of Section 4.2).

Replacing ``x + 0`` by ``x`` is right as long as nobody can tell the two apart. Two things can: a write (in the graph,
or by the caller to a tensor that was returned), and the identity of inputs and outputs. :class:`Effects` groups values
that may share memory, with a union-find over the aliasing observed at capture, and answers the questions that rules
ask.
"""

from __future__ import annotations

import operator

from ..capture.graph import Graph, Node, TensorMeta, nodes_in


class Effects:
    """Alias groups of a graph. O((V + E) alpha(V)) to build; valid as long as the graph changes only in ways that are
    told to :meth:`merge`."""

    def __init__(self, graph: Graph):
        self._parent: dict[Node, Node] = {node: node for node in graph}
        self._inputs: set[Node] = set()
        self._written: set[Node] = set()
        self._returned: set[Node] = set()
        by_name = {node.name: node for node in graph}
        for node in graph:
            if node.op == "output":
                continue
            if node.meta.get("overlaps") in by_name:  # an input that shares memory with an earlier one
                self._union(node, by_name[node.meta["overlaps"]])
            if node.meta.get("aliases") or node.meta.get("mutates") or takes_element(node):
                for source in node.inputs:
                    self._union(node, source)
        for node in graph:
            if node.op == "placeholder":
                self._inputs.add(self._find(node))
            elif node.op == "output":
                self._returned = {self._find(value) for value in nodes_in(node.args)}
            elif node.meta.get("mutates"):
                self._written.update(self._find(source) for source in (*node.inputs, node))

    def is_written(self, node: Node) -> bool:
        """Whether some operation of the graph writes memory this value may share."""
        return bool(self._written) and self._find(node) in self._written

    def is_input(self, node: Node) -> bool:
        """Whether the value may share memory with an input of the graph."""
        return self._find(node) in self._inputs

    def is_returned(self, node: Node) -> bool:
        """Whether the value, or a view of it, may be among the outputs."""
        return self._find(node) in self._returned

    def may_replace(self, node: Node, other: Node) -> bool:
        """Whether users of ``node`` may read the equal value ``other`` instead, as far as memory is concerned.

        Not if either is written, and not if ``node`` is returned while ``other`` belongs to the caller or is returned
        too: two tensors that were separate would become one.
        """
        if self.is_written(node) or self.is_written(other):
            return False
        return not (self.is_returned(node) and (self.is_input(other) or self.is_returned(other)))

    def add(self, node: Node) -> None:
        """Note a new node, whose value is in memory of its own."""
        self._parent[node] = node

    def merge(self, node: Node, other: Node) -> None:
        """Note that the users of ``node`` now read ``other``: what is true of one's memory is true of both."""
        groups = {self._find(node), self._find(other)}
        self._union(node, other)
        for marked in (self._inputs, self._written, self._returned):
            if marked & groups:
                marked.add(self._find(other))

    def _find(self, node: Node) -> Node:
        root = node
        while self._parent[root] is not root:
            root = self._parent[root]
        while self._parent[node] is not root:
            self._parent[node], node = root, self._parent[node]
        return root

    def _union(self, a: Node, b: Node) -> None:
        self._parent[self._find(a)] = self._find(b)


def takes_element(node: Node) -> bool:
    """``getitem`` on an operation with several results is no operation on tensors: its value *is* the element."""
    return (
        node.op == "call_function"
        and node.target is operator.getitem
        and isinstance(node.args[0], Node)
        and not isinstance(node.args[0].val, TensorMeta)
    )
