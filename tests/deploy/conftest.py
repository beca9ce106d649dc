"""Nodes, as the tests of the cluster have them."""

from tests.cluster.conftest import nodes, tiny

__all__ = ["nodes", "tiny"]
