"""The page on versions shows what was run, and names what was not."""

from __future__ import annotations

import json

from tests.versions.__main__ import PAGE, RESULTS, TABLE, make_table


def test_the_page_shows_the_results() -> None:
    (table,) = TABLE.findall(PAGE.read_text())
    assert make_table(json.loads(RESULTS.read_text())) == table


def test_a_pair_is_a_row_however_it_ended() -> None:
    results = {
        "3.10:2.9.1": {"ended": "passed", "why": "5 passed", "day": "2026-01-02"},
        "3.14:2.15.0": {"ended": "not run", "why": "no interpreter", "day": "2026-01-02"},
        "3.9:2.8.0": {"ended": "failed", "why": "1 failed, 4 passed", "day": "2026-01-03"},
    }
    rows = make_table(results).splitlines()
    assert "| 3.11 | 2.10.0 | | not run |" in rows
    assert "| 3.10 | 2.9.1 | 2026-01-02 | 5 passed |" in rows
    assert "| 3.14 | 2.15.0 |  | not run: no interpreter |" in rows
    assert "| 3.9 | 2.8.0 | 2026-01-03 | failed: 1 failed, 4 passed |" == rows[-1]
