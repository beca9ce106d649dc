"""`python -m chorus.text.grammar.spell MODEL TRUST`: every token's bytes as JSON, where there is no tokenizer.json."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from chorus.text.errors import TokenizerError
from chorus.text.tokenizer import Tokenizer


def main() -> int:
    try:
        tokenizer = Tokenizer.load(Path(sys.argv[1]), trust_remote_code=sys.argv[2] == "1")
    except TokenizerError as error:
        print(error, file=sys.stderr)
        return 1
    tokens = [tokenizer.token_bytes(token).hex() for token in range(tokenizer.vocabulary)]
    json.dump({"tokens": tokens, "special": sorted(tokenizer.added_tokens.values())}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
