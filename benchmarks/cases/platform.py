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
    """Two plain sides, since "as stored" can be meant two ways and they differ by an order of magnitude.

    The GGUF keeps float16 scales beside float32 norms. Loaded tensor by tensor, the norms lift every activation to
    float32, for which MLX's CPU products are much faster. Cast to the one precision that the model declares, as
    mlx_lm's own conversion does, everything runs in float16.
    """
    slow_tokens = 2 if run.options.quick else SLOW_TOKENS
    stored = stored_default()
    run.notes.append(f"the plain sides generate only {slow_tokens} tokens a round: they take long for each")
    run.notes.append("as stored: float16 scales, float32 norms, so float32 activations; float16: all in that precision")
    with (
        chorus(SMOLLM2) as ours,
        InProcess(stored, threads=None, name="mlx_lm, tensors as stored") as plain,
        InProcess(stored, threads=None, dtype="float16", name="mlx_lm, float16") as half,
    ):
        one_stream(ours, PROMPT, 4)

        def our_decode() -> None:
            common.add_decode(run, ours.name, one_stream(ours, PROMPT, run.options.tokens))

        def plain_decode(side: InProcess) -> None:
            answer = side.generate(PROMPT, slow_tokens)
            check_useful(side.name, answer, slow_tokens)
            common.add_decode(run, side.name, answer)

        run.interleave(our_decode, lambda: plain_decode(plain), lambda: plain_decode(half), most_rounds=MOST_ROUNDS)
    return [Goal(common.DECODE, ours.name, ">=", 40, against=side.name) for side in (half, plain)]


BENCHMARK = Benchmark("platform", "SmolLM2 on a CPU against the same GGUF as stored, with the bundled BLAS", measure)
