"""Findings as a table and as JSON, and exceptions as problems."""

import json

from transduct.doctor import Finding, Findings


def some() -> Findings:
    findings = Findings("here")
    findings.ok("one", "is fine", 1)
    with findings.within("there"):
        findings.note("two", "is worth knowing")
        findings.problem("three", "is wrong")
    findings.ok("four", "is fine")
    return findings


def test_a_table_has_a_heading_for_each_place_and_marks_problems():
    assert str(some()) == (
        "here\n  ok       one    is fine\n\nthere\n  note     two    is worth knowing\n  PROBLEM  three  is wrong\n"
        "\nhere\n  ok       four   is fine\n\n1 problem found"
    )
    assert str(Findings()).endswith("no problem found")


def test_no_text_of_a_folder_acts_on_the_terminal():
    findings = Findings("here")
    findings.note("config\x1b[8m", "the key \x9b2J\u202e is unknown\n\nno problem found")
    findings.problem("two", "is wrong")
    assert str(findings) == (
        "here\n"
        "  note     config\\x1b[8m  the key \\x9b2J\\u202e is unknown\\n\\nno problem found\n"
        "  PROBLEM  two            is wrong\n\n1 problem found"
    )


def test_json_holds_all_of_it():
    values = json.loads(json.dumps(some().to_dict()))
    assert values["problems"] == 1
    assert [Finding(**finding) for finding in values["findings"]] == some()


def test_an_exception_becomes_a_problem_that_names_faults_of_the_program():
    findings = Findings()
    with findings.problems_of("file"):
        raise ValueError("two\nlines")
    with findings.problems_of("file"):
        raise KeyError("name")
    with findings.problems_of("file"):
        findings.ok("file", "read")
    assert [finding.text for finding in findings] == ["two lines", "KeyError: 'name'", "read"]
    assert len(findings.problems) == 2
