"""The kernels: ONNX Runtime's products with packed weights, as small graphs with the weights inside.

One session for each graph, all on one pool of threads. Weights that are given with each call are hundreds of times
slower, and a memory arena for each session would hold gigabytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from chorus.rank.products.packing import Floats, Packed

Product = Callable[[Floats], Floats]

_VERSIONS = (helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1))
_IR_VERSION = 10
_INT8_ACTIVATIONS = 4
"""Activations as integers of 8 bits, with a scale for each block: what the fast kernels multiply."""


def use_threads(count: int) -> None:
    """For all graphs of this process; before the first."""
    ort.set_default_logger_severity(3)
    ort.set_global_thread_pool_sizes(count, 1)


def linear(matrix: Packed, bias: Floats | None = None) -> Product:
    """x @ matrix.T + bias, for rows of x."""
    graph = _Graph()
    graph.give("y", graph.product("x", matrix, bias))
    return graph.session(matrix.columns, matrix.rows)


def gated(gate_up: Packed, down: Packed, activation: str) -> Product:
    """A gated MLP in one call: down(activation(gate(x)) * up(x)); the rows of gate come before those of up."""
    graph = _Graph()
    both = graph.product("x", gate_up, None)
    gate, up = graph.node("Split", [both], outputs=2, axis=-1, num_outputs=2)
    (inner,) = graph.node("Mul", [ACTIVATIONS[activation](graph, gate), up])
    graph.give("y", graph.product(inner, down, None))
    return graph.session(gate_up.columns, down.rows)


def _silu(graph: _Graph, name: str) -> str:
    (open_,) = graph.node("Sigmoid", [name])
    return graph.node("Mul", [name, open_])[0]


def _relu_squared(graph: _Graph, name: str) -> str:
    (above,) = graph.node("Relu", [name])
    return graph.node("Mul", [above, above])[0]


ACTIVATIONS: dict[str, Callable[[_Graph, str], str]] = {
    "silu": _silu,
    "gelu": lambda graph, name: graph.node("Gelu", [name])[0],
    "gelu_tanh": lambda graph, name: graph.node("Gelu", [name], approximate="tanh")[0],
    "relu": lambda graph, name: graph.node("Relu", [name])[0],
    "relu_squared": _relu_squared,
}


@dataclass
class _Graph:
    """A graph that is being made: nodes, and the arrays that are inside."""

    nodes: list[NodeProto] = field(default_factory=list)
    arrays: list[TensorProto] = field(default_factory=list)
    _count: int = 0

    def node(self, kind: str, inputs: Sequence[str], *, outputs: int = 1, domain: str = "", **settings: Any) -> list[str]:
        names = [self._name() for _ in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, domain=domain, **settings))
        return names

    def product(self, x: str, matrix: Packed, bias: Floats | None) -> str:
        """What integers around zero give, and for each block the sum of its inputs times the block's shift."""
        scales = self._array(matrix.scales.reshape(-1))
        inputs = [x, self._array(matrix.codes), scales, "", "", *([self._array(bias)] if bias is not None else [])]
        (main,) = self.node(
            "MatMulNBits",
            inputs,
            domain="com.microsoft",
            K=matrix.columns,
            N=matrix.rows,
            bits=matrix.bits,
            block_size=matrix.block,
            accuracy_level=_INT8_ACTIVATIONS,
        )
        if matrix.shift is None:
            return main
        blocks = matrix.columns // matrix.block
        (cut,) = self.node("Reshape", [x, self._array(np.array([-1, blocks, matrix.block]))])
        (sums,) = self.node("ReduceSum", [cut, self._array(np.array([2]))], keepdims=0)
        return self.node("Gemm", [sums, self._array(np.ascontiguousarray(matrix.shift.T)), main])[0]

    def give(self, name: str, inner: str) -> None:
        self.nodes.append(helper.make_node("Identity", [inner], [name]))

    def session(self, width: int, rows: int) -> Product:
        told = helper.make_tensor_value_info
        graph = helper.make_graph(
            self.nodes,
            "product",
            [told("x", TensorProto.FLOAT, ["rows", width])],
            [told("y", TensorProto.FLOAT, ["rows", rows])],
            self.arrays,
        )
        model = helper.make_model(graph, opset_imports=_VERSIONS, ir_version=_IR_VERSION)
        options = ort.SessionOptions()
        options.use_per_session_threads = False
        options.enable_cpu_mem_arena = False
        options.enable_mem_pattern = False
        run = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"]).run
        return lambda x: run(None, {"x": x})[0]

    def _array(self, values: NDArray[Any]) -> str:
        name = self._name()
        self.arrays.append(numpy_helper.from_array(values, name))
        return name

    def _name(self) -> str:
        self._count += 1
        return f"v{self._count}"
