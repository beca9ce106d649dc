"""How well a model foretells a fixed text, by the form in which its weights are multiplied.

`perplexity` is the side that asks; running this module is the side that computes, one JSON line with the figure.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from pathlib import Path

from benchmarks.servers import ROOT, ServerFailed

TEXT = Path(__file__).with_name("perplexity.txt")
"""Our own words, as they stood in docs/ once: it stays as it is, whatever becomes of them."""
TOKENS = 4000
CHUNK = 512
SECONDS = 900.0


def perplexity(model: Path, policy: str, *, threads: int, tokens: int = TOKENS) -> float:
    command = [sys.executable, "-m", "benchmarks.perplexity", str(model), policy]
    command += ["--threads", str(threads), "--tokens", str(tokens)]
    done = subprocess.run(command, cwd=ROOT, timeout=SECONDS, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ServerFailed(f"{' '.join(command)} ends with {done.returncode}:\n{done.stderr[-2000:]}")
    return float(json.loads(done.stdout.splitlines()[-1])["perplexity"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="a llama's folder")
    parser.add_argument("policy", help="as a plan names it: float32, unpacked")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    options = parser.parse_args()
    from chorus import platform

    platform.prepare(options.threads)
    print(json.dumps({"perplexity": _measure(options.model, options.policy, options.tokens)}))


def _measure(path: Path, policy: str, count: int) -> float:
    """One sequence, its tokens given and not drawn, all positions behind the first judged."""
    import mlx.core as mx
    import mlx.nn as nn
    from tokenizers import Tokenizer

    from chorus.rank.load import load_shard

    text = TEXT.read_text(encoding="utf-8")
    tokens = Tokenizer.from_file(str(path / "tokenizer.json")).encode(text, add_special_tokens=False).ids[:count]
    if len(tokens) < count:
        raise SystemExit(f"{TEXT} has {len(tokens)} tokens, not {count}")
    stage = load_shard(path, range, policy=policy).stage
    model, cache = stage.model, stage.new_cache()
    head = model.model.embed_tokens.as_linear if model.args.tie_word_embeddings else model.lm_head
    loss = 0.0
    for start in range(0, count - 1, CHUNK):
        chunk = tokens[start : start + CHUNK]
        targets = tokens[start + 1 : start + CHUNK + 1]
        (hidden,) = stage.forward(mx.array([chunk]), cache, logits=False)
        scores = head(stage.final_norm(hidden))[0, : len(targets)].astype(mx.float32)
        loss += nn.losses.cross_entropy(scores, mx.array(targets), reduction="sum").item()
    return math.exp(loss / (count - 1))


if __name__ == "__main__":
    main()
