"""The list of checks: a policy under test in, an error for a broken promise out.

`picking.py` checks which clients a policy selects, `reporting.py` how it takes reports,
`rounds.py` other sizes, quotas and rounds that overlap, `persistence.py` its saved state.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from . import persistence, picking, reporting, rounds
from .policy_under_test import PolicyUnderTest


@dataclasses.dataclass(frozen=True)
class Check:
    """One promise of `cvrcore.Selector`; call it with a `PolicyUnderTest`."""

    name: str
    function: Callable[[PolicyUnderTest], None]
    random: bool = False  # holds for policies that draw, not for deterministic ones

    def __call__(self, policy: PolicyUnderTest) -> None:
        """Raise if the promise is broken."""
        self.function(policy)

    def __repr__(self) -> str:
        return self.name  # test runners print it


CHECKS = [
    Check("identity", picking.identity),
    Check("same-seed", picking.same_seed),
    Check("other-seed", picking.other_seed, random=True),
    Check("global-random", picking.global_random),
    Check("picks", picking.picks),
    Check("availability", picking.availability),
    Check("sizes", picking.sizes),
    Check("laws", picking.laws),
    Check("asked-sizes", rounds.asked_sizes),
    Check("quotas", rounds.quotas),
    Check("overlap", rounds.overlap),
    Check("partial-reports", reporting.partial_reports),
    Check("report-order", reporting.report_order),
    Check("stated-needs", reporting.stated_needs),
    Check("failures", reporting.failures),
    Check("one-report", reporting.one_report),
    Check("abandoned-round", reporting.abandoned_round),
    Check("rejected-calls", reporting.rejected_calls),
    Check("resize", reporting.resize),
    Check("copies", reporting.copies),
    Check("plain-state", persistence.plain_state),
    Check("snapshot", persistence.snapshot),
    Check("restore", persistence.restore),
    Check("file", persistence.file),
    Check("foreign-state", persistence.foreign_state),
]
