from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chorus.cluster.doctor import links, nodes, rdma, resources, software
from tests.cluster.doctor.cases import TABLES, Fault, Table

DOCUMENT = Path(__file__).parents[3] / "docs" / "doctor.md"
EVERY = [table for tables in TABLES.values() for table in tables]


def faults() -> Iterator[Any]:
    for table in EVERY:
        for check in table.checks:
            for number, fault in enumerate(table.faults.get(check.name, ())):
                yield pytest.param(table, check, fault, id=f"{check.name} {number}")


@pytest.mark.parametrize(("table", "check", "fault"), list(faults()))
def test_a_check_finds_its_fault_and_says_what_to_do(table: Table, check: Any, fault: Fault) -> None:
    facts = dataclasses.replace(fault.of or table.well[0], **fault.change)
    found = [finding for finding in check(facts) if finding.status != "ok"]
    assert {finding.status for finding in found} == {fault.status}
    assert all(finding.fix for finding in found)
    assert any(fault.says in finding.value and fault.fix in finding.fix for finding in found), found
    assert "\n" not in "".join(finding.value + finding.fix for finding in found)


@pytest.mark.parametrize("table", EVERY, ids=lambda table: table.checks[0].name)
def test_where_all_is_well_no_check_complains(table: Table) -> None:
    for facts in table.well:
        complaints = [finding for check in table.checks for finding in check(facts) if finding.status != "ok"]
        assert complaints == []


@pytest.mark.parametrize("table", EVERY, ids=lambda table: table.checks[0].name)
def test_every_check_has_a_fault_that_it_finds(table: Table) -> None:
    assert {check.name for check in table.checks} == {name for name, cases in table.faults.items() if cases}


def test_every_check_of_doctor_stands_in_one_of_the_tables() -> None:
    modules = (links, nodes, rdma, resources, software)
    assert sorted(map(id, (module.CHECKS for module in modules))) == sorted(id(table.checks) for table in EVERY)


def test_the_document_has_every_check_and_no_other() -> None:
    told = DOCUMENT.read_text()
    for section, tables in TABLES.items():
        part = re.search(rf"^## [^\n]*{section}\n(.*?)(?=^## |\Z)", told, re.MULTILINE | re.DOTALL | re.IGNORECASE)
        assert part, section
        rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", part[1], re.MULTILINE)[2:]
        assert rows == [(check.name, check.finds) for table in tables for check in table.checks]
