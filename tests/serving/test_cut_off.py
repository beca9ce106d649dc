"""An answer that its limit cuts off anywhere shows no markup and no half call, whatever way the model writes calls."""

from __future__ import annotations

import json

import pytest

from chorus.serving.blocks import Blocks
from tests.text.parsers.samples import SAMPLES, Sample, outcome, run


@pytest.mark.parametrize("sample", SAMPLES, ids=[f"{sample.family}-{number}" for number, sample in enumerate(SAMPLES)])
def test_a_cut_answer_holds_the_beginning_of_the_whole_one_and_its_finished_calls(sample: Sample) -> None:
    whole = outcome(run(sample.parser(), [sample.text]))
    for end in range(len(sample.text)):
        blocks = Blocks()
        list(blocks.push(sample.parser().push(sample.text[:end])))
        blocks.cut_off()
        assert whole.content.startswith(blocks.text_of("text")), sample.text[:end]
        assert whole.reasoning.startswith(blocks.text_of("reasoning")), sample.text[:end]
        calls = [(block.name, json.loads(block.text)) for block in blocks.of_kind("call")]
        assert calls == list(whole.calls[: len(calls)]), sample.text[:end]
