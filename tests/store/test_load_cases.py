"""The table of cases: every combination of facts falls in exactly one row."""

from __future__ import annotations

import enum
import itertools
from typing import get_type_hints

from broker.store.recover.cases import CASES, CaseVerdict, case_of
from broker.store.recover.steps import CUT_DERIVED, CUT_LOG, EMPTY_DERIVED, KEEP_ASIDE, REPLAY, TRUST
from broker.store.recover.survey import SurveyFacts


def combinations() -> list[SurveyFacts]:
    """All of them."""
    hints = get_type_hints(SurveyFacts)
    values = [list(kind) if issubclass(kind, enum.Enum) else [False, True] for kind in hints.values()]
    return [SurveyFacts(*combination) for combination in itertools.product(*values)]


def test_every_combination_of_facts_falls_in_exactly_one_row() -> None:
    assert len(combinations()) == 5 * 2 * 2 * 2 * 2 * 3 * 3
    for facts in combinations():
        rows = [case.label for case in CASES if case.fits(facts)]
        assert len(rows) == 1, (facts, rows)
        assert case_of(facts).label == rows[0]


def test_no_row_is_idle() -> None:
    for case in CASES:
        assert any(case.fits(facts) for facts in combinations()), case.label


def test_rows_that_refuse_or_do_nothing_have_no_steps() -> None:
    for case in CASES:
        assert bool(case.steps) == (case.verdict is CaseVerdict.RECOVER), case.label


def test_what_is_cut_is_kept_aside_first() -> None:
    """And derived files are never cut without a replay, nor is a page trusted before the checkpoint."""
    for case in CASES:
        steps = list(case.steps)
        if CUT_LOG in steps:
            assert steps.index(KEEP_ASIDE) < steps.index(CUT_LOG)
        if CUT_DERIVED in steps or EMPTY_DERIVED in steps:
            assert REPLAY in steps
        if steps:
            assert steps[-1] is TRUST
