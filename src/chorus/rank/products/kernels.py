"""The kernels: ONNX Runtime's products, as small graphs with the weights inside, packed or plain.

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

from chorus.rank.products.packing import Floats, Packed, Plain

_VERSIONS = (helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1))
_IR_VERSION = 10
_INT8_ACTIVATIONS = 4
"""Activations as integers of 8 bits, with a scale for each block: what the fast kernels multiply."""
_SMALL = 1024
"""Bytes of an array that may lie inside the graph's own message."""


@dataclass(frozen=True)
class Matrix:
    """What a linear layer multiplies with, and what it adds."""

    weights: Packed | Plain
    bias: Floats | None = None

    def with_empty_rows(self, before: int, after: int) -> Matrix:
        """The same with rows of zeros at its ends."""
        if not before and not after:
            return self
        bias = None if self.bias is None else np.pad(self.bias, (before, after))
        return Matrix(self.weights.with_empty_rows(before, after), bias)

    @property
    def nbytes(self) -> int:
        return self.weights.nbytes + (self.bias.nbytes if self.bias is not None else 0)


class Kernel:
    """A graph that is ready to run."""

    def __init__(
        self, run: Callable[..., list[Floats]], outputs: Sequence[tuple[str, int]], width: int, nbytes: int
    ) -> None:
        self._run = run
        self._outputs = [name for name, _ in outputs]
        self.rows = outputs[-1][1]
        """Numbers in a row of its last output."""
        self.width = width
        """Numbers in a row of its input."""
        self.nbytes = nbytes

    @property
    def count(self) -> int:
        return len(self._outputs)

    def __call__(self, rows: Floats) -> list[Floats]:
        return self._run(None, {"x": rows})

    def some(self, rows: Floats, places: Sequence[int]) -> list[Floats]:
        """Only these outputs, and only what they need."""
        return self._run([self._outputs[place] for place in places], {"x": rows}, _ONLY_WHAT_IS_ASKED)


_ONLY_WHAT_IS_ASKED = ort.RunOptions()
_ONLY_WHAT_IS_ASKED.only_execute_path_to_fetches = True


def start(threads: int) -> None:
    """Before the first graph of this process: so many threads for all of them."""
    ort.set_default_logger_severity(3)
    ort.set_global_thread_pool_sizes(threads, 1)


def linears(matrices: Sequence[Matrix], threads: int | None = None) -> Kernel:
    """x @ matrix.T + bias for each of the matrices, which all take the same x. With `threads`, in a pool of its own."""
    graph = _Graph()
    for matrix in matrices:
        graph.give(graph.product("x", matrix), matrix.weights.rows)
    return graph.kernel(matrices, threads)


def mlp(combine: Combine, inner: Sequence[Matrix], last: Matrix) -> Kernel:
    """A whole MLP: `last` of what the activation makes of the products of the inner matrices."""
    graph = _Graph()
    made = combine(graph, [graph.product("x", matrix) for matrix in inner])
    graph.give(graph.product(made, last), last.weights.rows)
    return graph.kernel([*inner, last])


@dataclass
class _Graph:
    """A graph that is being made: nodes, and the arrays that are inside."""

    nodes: list[NodeProto] = field(default_factory=list)
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    outputs: list[tuple[str, int]] = field(default_factory=list)
    _sums: dict[tuple[str, int, int], str] = field(default_factory=dict)
    _count: int = 0

    def node(self, kind: str, *inputs: str, outputs: int = 1, domain: str = "", **settings: Any) -> list[str]:
        names = [self._name() for _ in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, domain=domain, **settings))
        return names

    def one(self, kind: str, *inputs: str, **settings: Any) -> str:
        return self.node(kind, *inputs, **settings)[0]

    def number(self, value: float) -> str:
        return self.array(np.array(value, np.float32))

    def product(self, x: str, matrix: Matrix) -> str:
        bias = [self.array(matrix.bias)] if matrix.bias is not None else []
        if isinstance(matrix.weights, Plain):
            return self.one("Gemm", x, self.array(matrix.weights.numbers), *bias, transB=1)
        return self._packed_product(x, matrix.weights, bias)

    def _packed_product(self, x: str, packed: Packed, bias: Sequence[str]) -> str:
        """What integers around zero give, and for each block the sum of its inputs times the block's shift."""
        main = self.one(
            "MatMulNBits",
            *(x, self.array(packed.codes), self.array(packed.scales.reshape(-1))),
            *(["", "", *bias] if bias else []),
            domain="com.microsoft",
            K=packed.columns,
            N=packed.rows,
            bits=packed.bits,
            block_size=packed.block,
            accuracy_level=_INT8_ACTIVATIONS,
        )
        if packed.shift is None:
            return main
        shift = self.array(np.ascontiguousarray(packed.shift.T))
        return self.one("Gemm", self._block_sums(x, packed), shift, main)

    def _block_sums(self, x: str, packed: Packed) -> str:
        key = (x, packed.columns, packed.block)
        if key not in self._sums:
            blocks = self.array(np.array([-1, packed.columns // packed.block, packed.block]))
            cut = self.one("Reshape", x, blocks)
            self._sums[key] = self.one("ReduceSum", cut, self.array(np.array([2])), keepdims=0)
        return self._sums[key]

    def give(self, inner: str, rows: int) -> None:
        name = f"y{len(self.outputs)}"
        self.nodes.append(helper.make_node("Identity", [inner], [name]))
        self.outputs.append((name, rows))

    def kernel(self, matrices: Sequence[Matrix], threads: int | None = None) -> Kernel:
        told, width = helper.make_tensor_value_info, matrices[0].weights.columns
        inside = {name: array for name, array in self.arrays.items() if array.nbytes <= _SMALL}
        beside = {name: array for name, array in self.arrays.items() if array.nbytes > _SMALL}
        graph = helper.make_graph(
            self.nodes,
            "products",
            [told("x", TensorProto.FLOAT, ["rows", width])],
            [told(name, TensorProto.FLOAT, ["rows", rows]) for name, rows in self.outputs],
            [
                *(numpy_helper.from_array(array, name) for name, array in inside.items()),
                *(_told_of(array, name) for name, array in beside.items()),
            ],
        )
        model = helper.make_model(graph, opset_imports=_VERSIONS, ir_version=_IR_VERSION)
        options = ort.SessionOptions()
        if threads is None:
            options.use_per_session_threads = False
        else:
            options.intra_op_num_threads = threads
        options.enable_cpu_mem_arena = False
        options.enable_mem_pattern = False
        if beside:
            # Inside the message the session would keep them twice: as they came, and as its kernels want them.
            values = [ort.OrtValue.ortvalue_from_numpy(array) for array in beside.values()]
            options.add_external_initializers(list(beside), values)
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return Kernel(session.run, self.outputs, width, sum(m.nbytes for m in matrices))

    def array(self, values: NDArray[Any]) -> str:
        name = self._name()
        self.arrays[name] = np.ascontiguousarray(values)
        return name

    def _name(self) -> str:
        self._count += 1
        return f"v{self._count}"


Combine = Callable[[_Graph, Sequence[str]], str]
"""Adds to a graph what an MLP does between its products, of which it is given the names."""


def _told_of(array: NDArray[Any], name: str) -> TensorProto:
    """An array that the session is handed beside the message."""
    told = TensorProto(name=name, data_type=helper.np_dtype_to_tensor_dtype(array.dtype), dims=array.shape)
    told.data_location = TensorProto.EXTERNAL
    told.external_data.add(key="location", value="beside")
    return told
