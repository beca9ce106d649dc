"""`python -m chorus.text.grammar.spell MODEL TRUST`: a model's vocabulary as JSON, where it has no tokenizer.json."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from chorus.text.errors import TokenizerError
from chorus.text.tokenizer import Tokenizer


def main() -> int:
    try:
        tokenizer = Tokenizer.load(Path(sys.argv[1]), trust_remote_code=sys.argv[2] == "1")
    except TokenizerError as error:
        print(error, file=sys.stderr)
        return 1
    told: dict[str, Any] = {"file": tokenizer.as_file()}
    if told["file"] is None:
        told["tokens"] = [tokenizer.token_bytes(token).hex() for token in range(tokenizer.vocabulary)]
        told["special"] = sorted(tokenizer.added_tokens.values())
    json.dump(told, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
