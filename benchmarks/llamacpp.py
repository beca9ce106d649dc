"""llama.cpp as fast as it is without a server: `PYTHON -I benchmarks/llamacpp.py FILE.gguf --threads 2`.

Runs in a Python of its own that has llama-cpp-python, and none of ours. Reads {"prompts": [[token, …], …], "tokens": n}
as JSON, a line each; answers with the seconds until each prompt had its first token and until all had n.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence

import llama_cpp
import numpy as np

CONTEXT = 4096
MOST_STREAMS = 32


class Model:
    def __init__(self, path: str, threads: int) -> None:
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx = settings.n_batch = settings.n_ubatch = CONTEXT
        settings.n_seq_max = MOST_STREAMS
        settings.n_threads = settings.n_threads_batch = threads
        self._context = llama_cpp.llama_init_from_model(self._model, settings)
        self._vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._batch = llama_cpp.llama_batch_init(CONTEXT, 0, 1)

    def generate(self, prompts: Sequence[Sequence[int]], tokens: int) -> dict[str, float]:
        """The likeliest tokens, all sequences in one batch."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)
        begin = time.perf_counter()
        rows = [(token, place, stream) for stream, prompt in enumerate(prompts) for place, token in enumerate(prompt)]
        ends = np.cumsum([len(prompt) for prompt in prompts]) - 1
        drawn = self._decode(rows, ends)
        first = time.perf_counter() - begin
        for number in range(tokens - 1):
            rows = [(token, len(prompts[stream]) + number, stream) for stream, token in enumerate(drawn)]
            drawn = self._decode(rows, range(len(prompts)))
        return {"first_seconds": first, "total_seconds": time.perf_counter() - begin}

    def _decode(self, rows: Sequence[tuple[int, int, int]], wanted: Sequence[int]) -> list[int]:
        batch = self._batch
        batch.n_tokens = len(rows)
        for index, (token, place, stream) in enumerate(rows):
            batch.token[index], batch.pos[index] = token, place
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, stream
            batch.logits[index] = False
        for index in wanted:
            batch.logits[index] = True
        if code := llama_cpp.llama_decode(self._context, batch):
            raise RuntimeError(f"llama_decode says {code}")
        return [self._likeliest(index) for index in wanted]

    def _likeliest(self, index: int) -> int:
        logits = llama_cpp.llama_get_logits_ith(self._context, int(index))
        return int(np.ctypeslib.as_array(logits, (self._vocabulary,)).argmax())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    # llama.cpp itself writes to standard error only.
    model = Model(options.model, options.threads)
    print(json.dumps({"ready": True, "version": llama_cpp.__version__}), flush=True)
    for line in sys.stdin:
        print(json.dumps(model.generate(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
