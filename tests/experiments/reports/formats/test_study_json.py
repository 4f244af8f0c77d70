"""Tests of results.json: what it holds, that it comes back, what is refused."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from experiments.reports.formats.study_json import read_study
from experiments.reports.formats.writing import write_report
from solver.io.json_files import problem_digest
from tests.support.refusals import REMOVE, changed, refused
from tests.support.studies import HOSTILE, solved_study


def everything(found):
    """All fields, also those that do not count when studies are compared."""
    whole = {entry.name: getattr(found, entry.name) for entry in dataclasses.fields(found)}
    whole["cases"] = [
        (case.key, case.problem and problem_digest(case.problem), case.reason)
        for case in found.cases
    ]
    whole["rows"] = [
        tuple(getattr(each, entry.name) for entry in dataclasses.fields(each))
        for each in found.rows
    ]
    return whole


@pytest.mark.parametrize("names", [("a", "b", "c"), HOSTILE])
def test_a_study_comes_back_as_it_was(names, tmp_path):
    found = solved_study(names, model=names[0])
    found = dataclasses.replace(
        found, limits=dataclasses.replace(found.limits, deterministic=True, seed=7)
    )
    write_report(found, tmp_path)
    back = read_study(tmp_path / "results.json")
    assert everything(back) == everything(found)
    write_report(back, tmp_path / "again")
    for path in sorted(tmp_path.glob("*.*")):
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes(), path.name


def test_errors_that_are_not_finite_are_valid_json(tmp_path):
    found = solved_study()
    checks = [dataclasses.replace(found.checks[0], max_abs_error=math.nan)]
    checks += [dataclasses.replace(found.checks[0], max_abs_error=-math.inf)]
    write_report(dataclasses.replace(found, checks=tuple(checks)), tmp_path)

    def refuse(word):
        raise AssertionError(word)

    json.loads((tmp_path / "results.json").read_text(), parse_constant=refuse)
    nan, inf = read_study(tmp_path / "results.json").checks
    assert math.isnan(nan.max_abs_error or 0)
    assert inf.max_abs_error == -math.inf


WRONG = [
    (("schema",), "fxpartition.plan", "schema is 'fxpartition.plan'"),
    (("version",), 1, "version is 1; this release reads 3"),
    (("limits",), None, "limits is not an object"),
    (("limits", "seed"), -1, "limits: seed is -1"),
    (("wall_time_s",), "long", "wall_time_s is 'long'; write a number"),
    (("rows", 0, "objective"), ["1"], "rows[0]: objective[0] is '1'"),
    (("rows", 0, "objective"), [1, 2], "rows[0]: objective has not one number for each"),
    (("rows", 0, "objective"), None, "rows[0]: feasible, but has no objective"),
    (("rows", 0, "case", "model"), "other", "rows[0]: its case is not one of the cases"),
    (("rows", 0, "case", "objective"), [], "rows[0]: case: objective is empty"),
    (("rows", 0, "extra"), 1, "rows[0]: 'extra' is unknown"),
    (("rows", 0, "plan"), "../../etc/passwd", "rows[0]: plan is '../../etc/passwd'; write a file"),
    (("rows", 0, "plan"), "plans/../../x.json", "rows[0]: plan is 'plans/../../x.json'"),
    (("rows", 0, "plan"), "/plans/x.json", "rows[0]: plan is '/plans/x.json'"),
    (("rows", 0, "plan"), "plans/missing.json", "cannot read"),
    (("rows", 0, "plan"), {}, "rows[0]: plan: schema is None"),
    (("cases", 0, "problem"), "problems/a\n.json", "cases[0]: problem is"),
    (("cases", 0, "digest"), "0" * 64, "is not the problem of these results"),
    (("extra",), 1, "'extra' is unknown"),
    (("cases",), REMOVE, "cases is missing"),
    (("environment",), REMOVE, "environment is missing"),
]


@pytest.mark.parametrize(("path", "value", "says"), WRONG)
def test_what_is_wrong_is_named_in_one_line(path, value, says, tmp_path):
    write_report(solved_study(), tmp_path)
    file = tmp_path / "results.json"
    file.write_text(json.dumps(changed(json.loads(file.read_text()), path, value)))
    with refused("results.json", says):
        read_study(file)
