"""An endpoint of one's own: its module and its place in the list of routers."""

from __future__ import annotations

from pathlib import Path

from tests.examples.front_end import front_end
from tests.examples.support import changed_files

MESSAGES = [{"role": "user", "content": "How are you?"}]


def test_it_touches_two_files() -> None:
    assert len(changed_files("endpoint")) == 2


def test_it_answers_refuses_and_describes_itself_as_the_others_do(tmp_path: Path) -> None:
    with front_end("endpoint", tmp_path) as (http, _):
        answer = http.post("/apply-template", json={"messages": MESSAGES})
        assert answer.status_code == 200, answer.text
        assert "How are you?" in answer.json()["prompt"]
        assert len(answer.json()["prompt"]) > len("How are you?")
        for body, param in (({"messages": []}, "messages"), ({"messages": MESSAGES, "model": "another"}, "model")):
            refused = http.post("/apply-template", json=body)
            assert refused.status_code in (400, 404)
            assert refused.json()["error"]["param"] == param
        described = http.get("/openapi.json").json()["paths"]["/apply-template"]["post"]
        schema = described["requestBody"]["content"]["application/json"]["schema"]
        assert schema == {"$ref": "#/components/schemas/ApplyTemplateRequest"}
