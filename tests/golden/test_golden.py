"""TensorFlow's recorded answers are ours, but for the differences that the rules name."""

from __future__ import annotations

import copy
import json
import runpy
import sys

import pytest

from tests.golden import facts
from tests.golden.compare import differences
from tests.golden.expected import steps_of
from tests.golden.play import play
from tests.golden.rules import RULES, rewritten
from tests.golden.runner import RECORDED, load, run_all, run_case
from tests.golden.skips import SKIPS, skip_rule
from tests.golden.values import leaves, num_rows

CASES = load(RECORDED)
BY_ID = {case["id"]: case for case in CASES}


@pytest.mark.parametrize("case", CASES, ids=BY_ID)
def test_case(case):
    outcome = run_case(case)

    if outcome.skipped:
        pytest.skip(outcome.skipped)
    assert outcome.differences == []


def test_few_cases_are_skipped_and_each_rule_has_a_use():
    skipped = [rule.name for rule in map(skip_rule, CASES) if rule]

    assert len(skipped) <= len(CASES) // 10
    assert {*skipped} == {rule.name for rule in SKIPS}


def test_each_difference_touches_a_case():
    touched = {name for case in CASES if not skip_rule(case) for name in rewritten(case)[1]}

    assert touched == {rule.name for rule in RULES}


@pytest.mark.slow
def test_rules_leave_the_recording_as_it_is_and_are_stable():
    for case in CASES:
        if skip_rule(case) is None:
            before = copy.deepcopy(case)

            assert rewritten(case) == rewritten(case)
            assert case == before


def test_rules_and_skips_do_not_look_at_names():
    for case in CASES:
        renamed = {**case, "id": "x", "group": "x"}

        assert skip_rule(renamed) == skip_rule(case)
        if skip_rule(case) is None:
            assert rewritten(renamed)[1] == rewritten(case)[1]


# ---- a comparison that cannot fail is worth nothing

PERMUTED = [
    "tutorial/DATA_1file_b4/mw2x1",
    "rebatch_single/OFF_10_8_drop/m1x3",
    "structure/dict_7_4/m1x2",
    "structure/str_mw_7_4/mw2x1",
    "files_mw/FILE_shuffle_records/mw2x1",
    "from_function/shard_then_batch_14/mw2x2",
    "iteration/optional_past_end/m1x2",
]


def wrong(case, change):
    """Differences after ``change`` has altered a copy of what is expected."""
    promised, _ = rewritten(case)
    observed = play(promised)
    assert differences(promised, observed) == []
    altered = copy.deepcopy(promised)
    change(altered)
    return differences(altered, observed)


@pytest.mark.parametrize("name", PERMUTED)
def test_one_permuted_value_fails(name):
    def permute(case):
        """Swap one value of the last worker's first step with one of its last step."""
        steps = steps_of(case["expected"][-1])
        real = [value for step in steps for value in step if num_rows(value)]
        first, last = leaves(real[0])[0], leaves(real[-1])[0]
        first["v"][0], last["v"][-1] = last["v"][-1], first["v"][0]
        if "compare" in case:  # an order that nobody promised: then another value
            last["v"][-1] += 100

    assert wrong(BY_ID[name], permute)


def spoil_dtype(case):
    leaves(steps_of(case["expected"][0])[0][0])[0]["d"] = "int32"


def spoil_trailing_of_zero_rows(case):
    batches = [value for step in steps_of(case["expected"][0]) for value in step]
    leaves(next(value for value in batches if not num_rows(value)))[0]["s"][-1] += 1


def spoil_number_of_steps(case):
    case["expected"][0]["epochs"][0]["steps"].pop()


def spoil_end(case):
    case["expected"][0]["epochs"][0]["end"] = {"event": "steps_done"}


def spoil_spec_dtype(case):
    leaves(case["expected"][0]["element_spec"])[0]["d"] = "int16"


def spoil_spec_trailing(case):
    leaves(case["expected"][0]["element_spec"])[0]["s"][-1] = 17


def spoil_context(case):
    case["expected"][0]["contexts"][0]["input_pipeline_id"] += 1


def spoil_error(case):
    case["expected"][0] = {"error": {"type": "KeyError", "message": ""}}


def spoil_absence_of_error(case):
    case["expected"][0] = {"epochs": [{"steps": [], "end": {"event": "StopIteration"}}]}


@pytest.mark.parametrize(
    ("spoil", "name"),
    [
        (spoil_dtype, "structure/pair_7_4/m1x3"),
        (spoil_trailing_of_zero_rows, "structure/dict_7_4/m1x3"),
        (spoil_number_of_steps, "tutorial/OFF_1file_b4/mw2x1"),
        (spoil_end, "iteration/one_device/one1x1"),
        (spoil_spec_dtype, "structure/nested_7_4/m1x2"),
        (spoil_spec_trailing, "structure/vec3_7_4/m1x2"),
        (spoil_context, "from_function/no_shard_14/mw4x1"),
        (spoil_error, "files_mw/FILE_too_few_files_1/mw2x1"),
        (spoil_absence_of_error, "files_mw/bad_record_on_worker1/mw2x1"),
    ],
)
def test_what_is_compared(spoil, name):
    assert wrong(BY_ID[name], spoil)


def test_a_case_that_lost_a_worker_fails():
    case = rewritten(BY_ID["tutorial/FILE_2files_b4/mw2x1"])[0]
    observed = play(case)

    assert differences(case, observed[:1])


# ---- the command line


def test_the_last_line_has_the_sums_and_failures_have_a_line():
    good = BY_ID["tutorial/partial_6_4/m1x2"]
    bad = copy.deepcopy(good)
    bad["expected"][0]["epochs"][0]["steps"].pop()
    skipped = next(case for case in CASES if skip_rule(case))
    said: list[str] = []

    fine = run_all([good, bad, skipped], gloo=False, say=said.append)

    assert not fine
    assert said[0].startswith(f"FAILED {bad['id']}: worker 0: epoch 0: expected 1 steps, got 2")
    assert said[-1] == "1 passed, 1 failed, 1 skipped"


def test_a_rule_that_touches_nothing_fails_the_run():
    said: list[str] = []

    fine = run_all([BY_ID["rebatch_single/AUTO_6_4/m1x1"]], gloo=False, say=said.append)

    assert not fine
    assert said[-2].startswith("rules that touched no case: ")
    assert said[-1] == "1 passed, 0 failed, 0 skipped"


def test_as_a_command(tmp_path, monkeypatch, capsys):
    path = tmp_path / "some.json"
    path.write_text(json.dumps([BY_ID["tutorial/partial_6_4/m1x2"]]))
    monkeypatch.setattr(sys, "argv", ["golden", str(path)])
    monkeypatch.delitem(sys.modules, "tests.golden.__main__", raising=False)
    with pytest.raises(SystemExit) as end:
        runpy.run_module("tests.golden", run_name="__main__", alter_sys=True)

    assert capsys.readouterr().out.splitlines()[-1] == "1 passed, 0 failed, 0 skipped"
    assert end.value.code == 1  # not every rule touched one of so few


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if facts.num_workers(case) == 2 and case["group"] == "tutorial"],
    ids=lambda case: case["id"],
)
def test_workers_as_processes(case):
    assert run_case(case, gloo=True).differences == []
