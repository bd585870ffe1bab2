"""Rules that choose the site in which a request to a language model is prefilled, by name or as a user's function."""

import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any

import numpy as np

from analysis.model.serving import RULES, Offer, Rule
from scenarios.policies.user_policy import loaded
from topologies.errors import format_value


def rule_of(name: str, key: str) -> Callable[[], Rule]:
    """Return what makes the rule with this name, or the function or class "FILE:NAME" of a user, whose objects may keep
    state; raises ValueError, whose text begins with the option or key that has the name. So does what is made."""
    if name in RULES:
        return lambda: RULES[name]
    if ":" not in name:
        raise ValueError(f"{key}: {format_value(name)} is unknown; allowed: {', '.join(RULES)}, or FILE:NAME")
    shown = format_value(name.rpartition("/")[2])  # a scenario's paths are absolute, and would not fit
    try:
        given = loaded(name)
    except ValueError as error:
        raise ValueError(f"{key}: {shown} {error}") from None

    def told(call: Callable[[], Any]) -> Any:
        """Call a part of the rule, whose prints are not results; raises ValueError if it fails."""
        try:
            with redirect_stdout(sys.stderr):
                return call()
        except (Exception, KeyboardInterrupt, SystemExit) as error:  # an interrupted run raises no KeyboardInterrupt
            raise ValueError(f"{key}: {shown} failed: {type(error).__name__}: {error}") from None

    def made() -> Rule:
        rule = told(given) if isinstance(given, type) else given

        def asked(offer: Offer) -> bool:
            answer = told(lambda: rule(offer))
            if not isinstance(answer, bool | np.bool_):
                allowed = f"returned {format_value(answer)}; allowed: True for the remote site, or False"
                raise ValueError(f"{key}: {shown} {allowed}")
            return bool(answer)

        return asked

    return made
