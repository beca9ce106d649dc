"""What a rank has recorded, as it travels."""

from __future__ import annotations

from chorus.messages.proto import trace_pb2 as pb
from chorus.telemetry.phases import PHASES, Recording, Span, StepFacts

MOST_SECONDS = 600.0
"""Nobody records longer, whoever asks."""


def recording_to_wire(recording: Recording | None) -> pb.Recording:
    if recording is None or not recording.spans:
        return pb.Recording()
    begins, ends, phases, ranks, steps, sent, received = zip(*recording.spans, strict=True)
    return pb.Recording(
        begins=begins,
        ends=ends,
        phases=phases,
        ranks=ranks,
        steps=steps,
        sent_bytes=sent,
        received_bytes=received,
        full=recording.full,
        facts={
            number: pb.StepFacts(kind=facts.kind, rows=facts.rows, tokens=facts.tokens)
            for number, facts in recording.steps.items()
        },
    )


def spans_from_wire(message: pb.Recording) -> list[Span]:
    """Raises ValueError where it is none."""
    columns = (
        *(message.begins, message.ends, message.phases, message.ranks, message.steps),
        *(message.sent_bytes, message.received_bytes),
    )
    spans = [Span(*row) for row in zip(*columns, strict=True)]
    if any(span.phase >= len(PHASES) for span in spans):
        raise ValueError("it names phases that this release does not know")
    return spans


def steps_from_wire(message: pb.Recording) -> dict[int, StepFacts]:
    return {number: StepFacts(facts.kind, facts.rows, facts.tokens) for number, facts in message.facts.items()}
