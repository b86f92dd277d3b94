"""Undo journal of a verb: changes that it is about to make in, the state before it out.

An `atomic` method is all or nothing. Before it changes anything, the objects of its owner note
their attributes in a `Journal`; arrays too large to copy in every round note the rows that they
are about to overwrite. The last step of the method drops the journal. If an exception or a
signal comes first, the journal restores the state before; if that is cut off as well, the next
call of the owner completes it, since restoring twice does no harm. A change that cannot be
undone ends in a `RuntimeError` at every later call.
"""

from __future__ import annotations

import functools
import sys
from collections import deque
from collections.abc import Callable, Collection
from types import FrameType
from typing import Any, ClassVar, Concatenate, Final, ParamSpec, TypeVar

import numpy as np

from ..validation import Ids
from .threads import own_lock

_CONTAINERS: Final = (list, dict, set, deque)
#: Types whose values need a reference only, as met so far: most attributes have one of them.
_INERT: Final[set[type]] = {bool, int, float, str, tuple, type(None)}
#: Never restored: a forked process may have renewed them since.
_CARRIED: Final = ("_lock", "_process")


class Journal:
    """The changes of one running verb, and how to undo them.

    Parameters
    ----------
    frame : frame
        The running call of the verb.
    """

    def __init__(self, frame: FrameType) -> None:
        self.frame: FrameType | None = frame
        self.broken = False  # whether something changed that cannot be undone
        self.closed = False  # whether the verb has ended: then nothing is noted any more
        self._undo: list[Callable[[], None]] = []
        self._whole: list[Callable[[], bool]] = []

    def attributes(self, owner: Any, replaced: Collection[str] = ()) -> None:
        """Note all attributes of an object.

        Arrays, lists, dicts, sets and random generators are copied; objects with a method
        ``enlist(journal)`` note themselves; other values are noted by reference.

        Parameters
        ----------
        owner : object
        replaced : collection of str
            Attributes that need a reference only: verbs replace them, or note changes
            themselves.
        """
        before = self.references(owner)
        for name, value in before.items():
            if type(value) in _INERT or name in replaced:
                continue
            if isinstance(value, np.ndarray):
                self.array(value)
            elif isinstance(value, _CONTAINERS):
                before[name] = value.copy()
                self._members(value)
            elif isinstance(value, np.random.Generator):
                self.generator(value)
            elif hasattr(value, "enlist"):
                value.enlist(self)
            else:
                _INERT.add(type(value))

    def _members(self, container: Any) -> None:
        """Note the arrays in a container, and in containers in it."""
        for value in container.values() if isinstance(container, dict) else container:
            if isinstance(value, np.ndarray):
                self.array(value)
            elif isinstance(value, (*_CONTAINERS, tuple)):
                self._members(value)

    def values(self, owner: Any, **before: Any) -> None:
        """Note the values that some attributes get if the verb is undone."""

        def undo() -> None:
            for name, value in before.items():
                setattr(owner, name, value)

        self._undo.append(undo)

    def references(self, owner: Any) -> dict[str, Any]:
        """Note which objects all attributes of an object refer to; return what is noted."""
        before = dict(vars(owner))

        def undo() -> None:
            present = vars(owner)
            owner.__dict__ = before | {n: present[n] for n in _CARRIED if n in present}

        self._undo.append(undo)
        return before

    def array(self, array: np.ndarray) -> None:
        """Note an array that is about to be written to."""
        before = array.copy()

        def undo() -> None:
            array[...] = before

        self._undo.append(undo)

    def rows(self, ids: Ids, *arrays: np.ndarray) -> None:
        """Note rows of arrays that are about to be overwritten."""
        before = [array.take(ids, axis=0) for array in arrays]

        def undo() -> None:
            for array, rows in zip(arrays, before, strict=True):
                array[ids] = rows

        self._undo.append(undo)

    def cross(self, ids: Ids, matrix: np.ndarray) -> None:
        """Note rows, and columns of the same ids, of a symmetric matrix."""
        before = matrix.take(ids, axis=0)

        def undo() -> None:
            matrix[ids] = before
            matrix[:, ids] = before.T

        self._undo.append(undo)

    def generator(self, rng: np.random.Generator) -> None:
        """Note the state of a random generator."""
        bits, before = rng.bit_generator, rng.bit_generator.state

        def undo() -> None:
            bits.state = before

        self._undo.append(undo)

    def whole_if(self, test: Callable[[], bool]) -> None:
        """Add a test of whether everything that changed so far can be undone."""
        self._whole.append(test)

    def undo(self) -> None:
        """Restore everything that was noted, the object noted first last."""
        if self.broken or not all(test() for test in self._whole):
            self.broken = True
            self._undo.clear()
            return
        for step in reversed(self._undo):
            step()
        self.close()

    def close(self) -> None:
        """End the verb: what has changed since stays."""
        self.closed = True
        self._undo.clear()
        self._whole.clear()


class Noted:
    """A part of an object with `atomic` methods: all its attributes are noted."""

    def enlist(self, journal: Journal) -> None:
        """Note everything that a verb may change."""
        journal.attributes(self)


class Atomic:
    """An object with `atomic` methods."""

    _journal: Journal | None = None  # of the running verb, or of one whose undoing was cut off
    #: Arrays that verbs replace and never write to, or whose rows they note in the journal.
    _replaced: ClassVar[frozenset[str]] = frozenset()
    _lock: Any

    def _enlist(self, journal: Journal) -> None:
        """Note everything that a verb may change; the owner comes first."""
        journal.attributes(self, self._replaced)

    def _after_fork(self) -> None:
        """Undo what another thread was doing when the process forked; renew random generators.

        A generator has a lock of its own, which that thread may have held.
        """
        try:
            running = self._settle()
        except RuntimeError:
            return  # the call that follows says so
        if not running:
            _renew_generators(self, set())

    def _settle(self) -> bool:
        """Undo what an interrupted verb left; return whether a verb of this thread is running."""
        journal = self._journal
        if journal is None:
            return False
        if not journal.broken and not journal.closed:
            frame: FrameType | None = sys._getframe(1)
            while frame is not None:
                if frame is journal.frame:
                    return True
                frame = frame.f_back
            journal.undo()
        if journal.broken:
            raise RuntimeError(
                "an earlier call was cut off in the middle: load the last saved state"
            )
        self._journal = None
        return False


def _renew_generators(owner: Any, seen: set[int]) -> None:
    seen.add(id(owner))
    for name, value in list(vars(owner).items()):
        if isinstance(value, np.random.Generator):
            fresh = np.random.Generator(type(value.bit_generator)())
            fresh.bit_generator.state = value.bit_generator.state
            setattr(owner, name, fresh)
        elif isinstance(value, (Noted, Atomic)) and id(value) not in seen:
            _renew_generators(value, seen)


A = TypeVar("A", bound=Atomic)
P = ParamSpec("P")
R = TypeVar("R")


def atomic(verb: Callable[Concatenate[A, P], R]) -> Callable[Concatenate[A, P], R]:
    """Make a method all or nothing, whatever exception or signal ends it; one thread at a time."""

    @functools.wraps(verb)
    def run(self: A, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with own_lock(self):
            if self._settle():  # called by another verb, which undoes everything if it fails
                return verb(self, *args, **kwargs)
            journal = Journal(sys._getframe())
            try:
                self._enlist(journal)
                self._journal = journal
                result = verb(self, *args, **kwargs)
                journal.close()  # its first line is the moment at which the state is the one after
                self._journal = None
                return result
            except BaseException:
                if not journal.closed and self._journal is not None:
                    journal.undo()
                if not journal.broken:
                    self._journal = None
                raise
            finally:
                journal.frame = None  # it refers to this frame

    return run
