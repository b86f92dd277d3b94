import json

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from cvrcore.ids import IdMap


def test_slots_are_given_in_order_of_first_sight():
    clients = IdMap()
    assert_array_equal(clients.slots(["b", "a", "b", 7, "c"]), [0, 1, 0, 2, 3])
    assert clients.slots([]).dtype == np.int64
    assert len(clients) == 4


def test_a_client_that_comes_back_finds_its_slot():
    clients = IdMap(["a", "b", "c"])
    assert_array_equal(clients.mask(["c"]), [False, False, True])  # a and b left
    clients.slot("d")
    assert [clients.slot(id) for id in "abcd"] == [0, 1, 2, 3]


def test_ids_invert_slots():
    names = [("host", 3), "x", 2**70, frozenset({1})]
    clients = IdMap(names)
    assert clients.ids(clients.slots(names)) == names
    assert [clients.id(slot) for slot in range(4)] == names


def test_membership_does_not_add():
    clients = IdMap(["a"])
    assert "a" in clients
    assert "z" not in clients
    assert len(clients) == 1


def test_equal_text_and_number_are_two_clients():
    assert len(IdMap([1, "1", np.int64(1)])) == 2


def test_state_survives_json_with_types():
    clients = IdMap(["1", 1, 2**63 + 5, np.int64(4), "é"])
    restored = IdMap.from_state_dict(json.loads(json.dumps(clients.state_dict())))
    assert len(restored) == 5
    for slot in range(5):
        assert restored.id(slot) == clients.id(slot)
        assert type(restored.id(slot)) in (str, int)
    assert restored.slot("new") == 5
    assert "new" not in clients


@pytest.mark.parametrize("id", [("a", 1), 1.5, True, None, b"raw"])
def test_ids_that_would_not_come_back_cannot_be_saved(id):
    with pytest.raises(TypeError, match="ids must be str or int to be saved, got"):
        IdMap(["a", id]).state_dict()


@pytest.mark.parametrize("state", [{}, [], {"ids": "abc"}, {"ids": ["a", "b", "a"]}])
def test_malformed_state_is_refused(state):
    with pytest.raises(ValueError, match="state must"):
        IdMap.from_state_dict(state)


def test_errors_name_the_argument_and_the_value():
    clients = IdMap(["a", "b"])
    with pytest.raises(ValueError, match="present_ids must be ids in the map, got 'z'"):
        clients.mask(["a", "z"])
    with pytest.raises(ValueError, match=r"slots must be ids in 0\.\.1, got 2"):
        clients.ids([0, 2])
    with pytest.raises(ValueError, match=r"slots must be ids in 0\.\.1, got -1"):
        clients.id(-1)
