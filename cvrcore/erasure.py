"""Erasure of one client from files: a state file or a log in, the same file without it out.

`Selector.forget` and `Aggregator.forget` erase a client from memory; saved states and logs of
rounds are rewritten here, atomically::

    selector.forget(7)
    forget_in_file("server.npz", 7)  # selectors, aggregators and id maps inside
    forget_in_log("rounds.jsonl", 7)

Sums over many clients stay, as the model itself does: see docs/reliability.md.
"""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any, Final

import numpy as np

from .ids import forgotten_name
from .state import load_state, save_state
from .validation import check_count

__all__ = ["forget_in_file", "forget_in_log", "forget_in_state"]

#: Lists of client ids in a line of a log.
_LISTS: Final = ("picked", "reported", "failed", "clients", "probed")


def forget_in_file(path: str | os.PathLike[str], client: int) -> None:
    """Erase a client from a state file: of a selector, an aggregator, an adapter or a run.

    Parameters
    ----------
    path : path
        A file that ``save`` or `cvrcore.state.save_state` wrote; it is replaced.
    client : int
        The slot of the client.

    Raises
    ------
    ValueError
        If the file is damaged, or knows no such client.

    Examples
    --------
    >>> import os, tempfile
    >>> import cvrcore
    >>> from cvrcore.erasure import forget_in_file
    >>> selector = cvrcore.make_selector("oort", n_clients=4, n_select=2, seed=0)
    >>> selector.observe(selector.select().clients, losses=[1.0, 2.0])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "selector.npz")
    ...     selector.save(path)
    ...     forget_in_file(path, client=1)
    ...     sorted(type(selector).load(path).select(n=4).clients.tolist())
    [0, 2, 3]
    """
    path = Path(path)
    save_state(path, forget_in_state(load_state(path), client, path.parent))


def forget_in_log(path: str | os.PathLike[str], client: int) -> None:
    """Erase a client from the lists of ids in a file of JSON lines, such as ``rounds.jsonl``.

    Examples
    --------
    >>> import os, tempfile
    >>> from cvrcore.erasure import forget_in_log
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "rounds.jsonl")
    ...     with open(path, "w") as file:
    ...         print('{"round": 0, "picked": [1, 7]}', file=file)
    ...     forget_in_log(path, client=7)
    ...     with open(path) as file:
    ...         print(file.read().strip())
    {"round": 0, "picked": [1]}
    """
    path, client = Path(path), check_count(client, "client", minimum=0)
    lines = path.read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    for record in records:
        for name in _LISTS:
            if isinstance(record.get(name), list):
                record[name] = [k for k in record[name] if k != client]
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}.part")
    try:
        with temporary.open("x", encoding="utf-8") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def forget_in_state(
    state: dict[str, Any], client: int, folder: str | os.PathLike[str] | None = None
) -> dict[str, Any]:
    """Return a state without one client; every part of it that knows clients is rewritten.

    Parameters
    ----------
    state : dict
        What a ``state_dict`` returned, or a dict that contains such states.
    client : int
    folder : path, optional
        Where an aggregator keeps rows that are too large for memory.

    Examples
    --------
    >>> import cvrcore
    >>> from cvrcore.erasure import forget_in_state
    >>> selector = cvrcore.make_selector("uniform", n_clients=4, n_select=2, seed=0)
    >>> state = forget_in_state({"selector": selector.state_dict()}, client=3)
    >>> type(selector).from_state_dict(state["selector"]).weights
    array([1., 1., 1., 0.])
    """
    client = check_count(client, "client", minimum=0)
    known: Any = _without(state, client, folder)
    return dict(known)


def _without(value: Any, client: int, folder: Any) -> Any:
    if isinstance(value, list):
        return [_without(item, client, folder) for item in value]
    if not isinstance(value, dict):
        return value
    if isinstance(value.get("policy"), str) and "learned" in value:
        return _selector_without(value, client)
    if isinstance(value.get("aggregator"), str):
        return _aggregator_without(value, client, folder)
    if value.keys() >= {"dtype", "shape", "known", "rows"}:
        return _rows_without(value, client, folder)
    if value.keys() == {"ids"} and isinstance(value["ids"], list) and client < len(value["ids"]):
        named = list(value["ids"])
        named[client] = forgotten_name(client)
        return {"ids": named}
    found = {key: _without(item, client, folder) for key, item in value.items()}
    if isinstance(found.get("times_picked"), np.ndarray) and "labels" in found:  # a meter
        found["times_picked"] = found["times_picked"].copy()
        found["times_picked"][client : client + 1] = 0
        found["labels"] = None
    return found


def _selector_without(state: dict[str, Any], client: int) -> dict[str, Any]:
    from .selectors import policy_class

    selector = policy_class(state["policy"]).from_state_dict(state)
    selector.forget(client)
    return selector.state_dict()


def _aggregator_without(state: dict[str, Any], client: int, folder: Any) -> dict[str, Any]:
    from .aggregators import make_aggregator

    inner = {key: value for key, value in state.items() if key != "server"}
    options: dict[str, Any] = {}
    if "bank" in state:
        options["dtype"] = state["bank"]["dtype"]
        if state["bank"]["rows"] is None:
            options |= {"limit": 0, "folder": folder}
    if "guard" in state:
        options["guards"] = "recommended"  # which bounds they are does not matter here
    aggregator = make_aggregator(state["aggregator"], **options)
    aggregator.load_state_dict(inner)
    aggregator.forget(client)
    server = {"server": state["server"]} if "server" in state else {}
    return {**aggregator.state_dict(), **server}


def _rows_without(state: dict[str, Any], client: int, folder: Any) -> dict[str, Any]:
    from .aggregators.row_store import RowStore

    on_disk = {"limit": 0, "folder": folder} if state["rows"] is None else {}
    store = RowStore(state["dtype"], **on_disk)
    store.restore(state)
    if client < store.n_rows:
        store.erase(client)
    return store.state()
