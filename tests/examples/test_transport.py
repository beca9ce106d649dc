"""A transport of one's own: its module and a row of the catalog, and two ranks talk over it."""

from __future__ import annotations

from pathlib import Path

from tests.examples.support import changed_files, patched
from tests.support.server import ChorusServer
from tests.support.tiny_model import write_tiny_model

PROMPTS = [[5, 6, 7, 8, 9], list(range(20, 90)), [300, 301]]


def test_it_touches_two_files_both_of_its_own_package() -> None:
    changed = [Path(file) for file in changed_files("transport")]
    assert len(changed) == 2
    assert {str(file.parent) for file in changed} == {"src/chorus/transport"}


def test_two_ranks_over_it_answer_what_one_rank_answers(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny", "llama", vocab_size=512, max_position_embeddings=4096)
    source = {"PYTHONPATH": str(patched("transport") / "src")}
    answers = []
    for arguments in ([], ["--ranks", "2", "--transport", "files"]):
        with ChorusServer(model, arguments, tmp_path, source) as server:
            answers.append([server.text(prompt) for prompt in PROMPTS])
            described = server.get("/model/info")
    assert described["transport"] == "files"
    assert answers[0] == answers[1]
