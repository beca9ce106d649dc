"""What the platform layer is worth on a CPU: a real BLAS and full precision against the file as it is stored."""

from __future__ import annotations

from benchmarks.cases import common
from benchmarks.inprocess import InProcess
from benchmarks.load import check_useful, one_stream
from benchmarks.models import SMOLLM2, stored_default
from benchmarks.report import Goal
from benchmarks.run import Benchmark, Run
from benchmarks.servers import chorus

# Short, since the slow side takes seconds for each of its tokens.
PROMPT = "Once upon a time"
SLOW_TOKENS = 4
MOST_ROUNDS = 3


def measure(run: Run) -> list[Goal]:
    slow_tokens = 2 if run.options.quick else SLOW_TOKENS
    stored = stored_default()
    run.notes.append(f"the stored side generates only {slow_tokens} tokens a round: it takes seconds for each")
    with chorus(SMOLLM2) as ours, InProcess(stored, threads=None, name="mlx_lm, as stored") as plain:
        one_stream(ours, PROMPT, 4)

        def our_decode() -> None:
            common.add_decode(run, ours.name, one_stream(ours, PROMPT, run.options.tokens))

        def plain_decode() -> None:
            answer = plain.generate(PROMPT, slow_tokens)
            check_useful(plain.name, answer, slow_tokens)
            common.add_decode(run, plain.name, answer)

        run.interleave(our_decode, plain_decode, most_rounds=MOST_ROUNDS)
    return [Goal(common.DECODE, ours.name, ">=", 40, against=plain.name)]


BENCHMARK = Benchmark("platform", "SmolLM2 on a CPU against the same GGUF as stored, with the bundled BLAS", measure)
