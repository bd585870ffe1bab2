"""Policy functions of a user, for tests."""

from scenarios.policies.situation import Situation


def when_slow(situation: Situation) -> tuple[bool, bool]:
    """Choose a new placement when it would save a third of the time."""
    return False, situation.embedded < 0 or situation.anew_s < situation.kept_s * 2 / 3
