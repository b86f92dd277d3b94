"""The policies that tests with a world of their own know: losses, durations and models.

`check_selector` and `test_zoo.py` put every policy through the same.
"""

FIRST_POLICIES = ("uniform", "power-of-choice", "active", "oort", "fedcbs", "fedcvr-bolt")
