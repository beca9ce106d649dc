"""`python -m chorus.text.grammar ORDER`: what a leader's grammars are forked from. Started by it, not by hand."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from pathlib import Path

from chorus.config.grammar import GrammarLimits
from chorus.messages.grammar import GrammarError
from chorus.text.errors import TokenizerError
from chorus.text.grammar.nursery import Nursery
from chorus.text.grammar.vocabulary import Vocabularies, usual_stop_tokens


def main() -> int:
    order = json.loads(sys.argv[1])
    # Control-C in a terminal reaches everybody; the leader ends in order, and its end is ours.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    model = Path(order["model"])
    vocabularies = Vocabularies(model, order["vocabulary"], order["trust_remote_code"])
    with contextlib.suppress(GrammarError, TokenizerError):  # told to the first request that has a grammar
        vocabularies.ending_with(usual_stop_tokens(model))
    nursery = Nursery(socket.socket(fileno=order["control"]), vocabularies, GrammarLimits(**order["limits"]))
    try:
        nursery.run()
    finally:
        nursery.close()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
