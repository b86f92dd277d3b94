"""Conformance test of selection policies: a policy in, the broken promises out.

Like scikit-learn's ``check_estimator``: `check_selector` builds the policy, runs rounds in
which clients join, leave, fail and do not reply, and lists the promises of `cvrcore.Selector`
that it breaks. It needs no test runner.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection
from typing import Any

from ..selectors.base import Selector
from .assertions import CheckFailed
from .checks import CHECKS, Check
from .policy_under_test import PolicyUnderTest

__all__ = ["ConformanceError", "check_selector", "selector_checks"]


class ConformanceError(AssertionError):
    """A policy breaks promises; the message lists them, one line each.

    Attributes
    ----------
    failures : dict of str to str
        What is wrong, by name of the check.

    Examples
    --------
    >>> import cvrcore
    >>> from cvrcore.testing import ConformanceError, check_selector
    >>> class First(cvrcore.Selector):
    ...     def _choose(self, eligible, probe):
    ...         return cvrcore.Selection(eligible.nonzero()[0][:1])  # one client, not n_select
    >>> try:
    ...     check_selector(First, deterministic=True)
    ... except ConformanceError as error:
    ...     len(error.failures) > 0
    True
    """

    def __init__(self, policy: str, failures: dict[str, str]) -> None:
        self.failures = failures
        lines = "".join(f"\n- {name}: {reason}" for name, reason in failures.items())
        super().__init__(f"{policy} fails {len(failures)} of {len(CHECKS)} checks:{lines}")


def selector_checks(deterministic: bool = False) -> list[Check]:
    """Return the checks that `check_selector` runs, for a test runner's parameters.

    Examples
    --------
    >>> [check.name for check in selector_checks()][:2]
    ['identity', 'same-seed']
    """
    return [check for check in CHECKS if not (deterministic and check.random)]


def check_selector(
    policy: str | type[Selector] | Callable[..., Selector],
    *,
    deterministic: bool = False,
    only: Collection[str] | None = None,
    **options: Any,
) -> list[str]:
    """Check that a policy keeps the promises of `cvrcore.Selector`.

    Parameters
    ----------
    policy : str, class or callable
        A name that `make_selector` finds, a subclass of `Selector`, or a function that
        builds one from ``n_clients``, ``n_select``, ``weights``, ``seed`` and `options`.
        If it has the parameters ``n_features`` or ``label_counts``, it gets them.
    deterministic : bool
        Whether the policy makes no random choice: the seed may then have no effect.
    only : collection of str, optional
        Names of checks to run. Default: all.
    **options
        Further arguments of the policy, the same for every selector that is built.

    Returns
    -------
    list of str
        Names of the checks passed.

    Raises
    ------
    ConformanceError
        If a check fails; the message names every failed check, with the reason.

    Examples
    --------
    >>> from cvrcore.testing import check_selector
    >>> len(check_selector("uniform")) > 10
    True
    """
    tested = PolicyUnderTest(policy, options)
    checks = selector_checks(deterministic)
    if only is not None:
        unknown = sorted(set(only) - {check.name for check in checks})
        if unknown:
            known = ", ".join(check.name for check in checks)
            raise ValueError(f"only must hold names of checks ({known}), got {unknown[0]!r}")
        checks = [check for check in checks if check.name in only]
    failures: dict[str, str] = {}
    cause: Exception | None = None
    for check in checks:
        try:
            check(tested)
        except CheckFailed as error:
            failures[check.name] = str(error)
        except Exception as error:
            failures[check.name] = _where(error)
            cause = cause or error
    if failures:
        raise ConformanceError(tested.label, failures) from cause
    return [check.name for check in checks]


def _where(error: Exception) -> str:
    """Return the error and the line that raised it."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"raised {type(error).__name__}: {error} ({frame.filename}:{frame.lineno})"
