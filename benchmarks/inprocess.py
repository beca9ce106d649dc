"""Generating without a server: the least that a token can cost.

`InProcess` asks `mlx_lm.stream_generate`, or `BatchGenerator` for several; running this module is the side that
generates, one JSON line for each it reads. `LlamaCpp` asks benchmarks/llamacpp.py.
"""

from __future__ import annotations

import argparse
import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.flow import Window
from benchmarks.load import Answer, Batch
from benchmarks.servers import ROOT, START_SECONDS, ServerFailed, Started, peer_module_environment

ANSWER_SECONDS = 900.0


class Generator(Started):
    """A process that loads a model and generates on request: it reads and writes JSON, a line each."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        super().__init__(name, command, environment)
        self.ready: dict[str, Any] = {}
        """What it said about itself when the model was loaded."""
        self._lines: queue.Queue[bytes] = queue.Queue()

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question).encode() + b"\n")
        self._process.stdin.flush()
        return self._read(ANSWER_SECONDS)

    def _output(self, log: Any) -> Any:
        return subprocess.PIPE

    def _wait_until_ready(self) -> None:
        threading.Thread(target=self._collect, name="answers", daemon=True).start()
        self.ready = self._read(START_SECONDS)

    def _collect(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(b"")

    def _read(self, seconds: float) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            raise ServerFailed(f"{self.name} says nothing for {seconds:g} s:\n{self.log_tail()}") from None
        if not line:
            raise ServerFailed(f"{self.name} ended:\n{self.log_tail()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


class InProcess(Generator):
    """A model loaded with mlx_lm."""

    def __init__(
        self, model: Path, *, threads: int | None, dtype: str | None = None, name: str = "mlx_lm.stream_generate"
    ) -> None:
        """Without threads, MLX is left as its wheel brings it: no BLAS of ours. Without a dtype, so is the model."""
        command = [sys.executable, "-m", "benchmarks.inprocess", str(model)]
        command += ["--bundled-blas"] if threads is None else ["--threads", str(threads)]
        command += ["--dtype", dtype] if dtype else []
        super().__init__(name, command, peer_module_environment())

    def generate(self, prompt: str, tokens: int) -> Answer:
        return Answer(**self.ask({"prompt": prompt, "tokens": tokens}))

    def decode_rate(self, prompts: Sequence[Sequence[int]], tokens: int, most: int) -> float:
        """Tokens per second of `BatchGenerator` once all these decode, until so many tokens of one of them later."""
        rate: float = self.ask({"prompts": list(prompts), "tokens": tokens, "most": most})["rate"]
        return rate


class LlamaCpp(Generator):
    """A GGUF loaded with llama.cpp, by a Python that has llama-cpp-python."""

    def __init__(self, python: Path, model: Path, *, threads: int, name: str = "llama.cpp") -> None:
        script = ROOT / "benchmarks" / "llamacpp.py"
        # As given: the link that a virtual environment has for its Python is what makes it that environment's.
        command = [str(python.absolute()), "-I", str(script), str(model), "--threads", str(threads)]
        super().__init__(name, command)

    def generate(self, prompts: Sequence[Sequence[int]], tokens: int) -> Batch:
        """All prompts as one batch, never ending before so many tokens."""
        said = self.ask({"prompts": list(prompts), "tokens": tokens})
        first, total = said["first_seconds"], said["total_seconds"]
        return Batch(tuple(Answer(len(prompt), tokens, 0, first, total) for prompt in prompts), total)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    blas = parser.add_mutually_exclusive_group(required=True)
    blas.add_argument("--threads", type=int, help="take over MLX's BLAS, with this many threads")
    blas.add_argument("--bundled-blas", action="store_true", help="leave MLX as its wheel brings it")
    parser.add_argument("--dtype", help="cast the model's floating-point tensors to this")
    options = parser.parse_args()
    # Answers go where standard output went; whatever libraries print goes to the log.
    answers, sys.stdout = sys.stdout, sys.stderr
    if options.threads is not None:
        from chorus import platform

        platform.prepare(options.threads)
    for answer in _serve(options.model, options.dtype):
        print(json.dumps(answer), file=answers, flush=True)


def _serve(path: Path, dtype: str | None) -> Iterator[dict[str, Any]]:
    import mlx.core as mx
    import mlx_lm

    model, tokenizer = mlx_lm.load(str(path))
    if dtype is not None:
        model.set_dtype(getattr(mx, dtype))
    yield {"ready": True}
    for line in sys.stdin:
        asked = json.loads(line)
        if "prompts" in asked:
            yield {"rate": _batch_rate(model, **asked)}
            continue
        begin = time.perf_counter()
        moments = []
        for response in mlx_lm.stream_generate(model, tokenizer, asked["prompt"], max_tokens=asked["tokens"]):
            moments.append(time.perf_counter() - begin)
            last = response
        yield asdict(Answer(last.prompt_tokens, last.generation_tokens, 0, moments[0], moments[-1]))


def _batch_rate(model: Any, prompts: list[list[int]], tokens: int, most: int) -> float:
    import mlx.core as mx
    from mlx_lm.generate import BatchGenerator

    generator = BatchGenerator(model, max_tokens=most)
    window = Window(generator.insert(prompts), tokens)
    while window.closed is None:
        for response in generator.next_generated():
            window.add(response.uid, time.perf_counter(), 1)
            if response.finish_reason:
                window.end(time.perf_counter())
    generator.close()
    del generator
    # Others are measured on this machine too.
    mx.clear_cache()
    return window.rate


if __name__ == "__main__":
    main()
