"""The cases of the contract between worlds and policies, and what a collective shows of it."""

from typing import Any

MODE = "mine"
_POLICY = f'[run]\nmodes = ["{MODE}"]\n[collective]\ncount = 4\nsize = "{{size}}"\n{{collective}}\n'
_POLICY += f'[conditions]\nsampler = "markov"\nmean_stay = 2\n{{conditions}}\n[[policy]]\nname = "{MODE}"\n{{policy}}\n'


def case(policy: str, *, size: str = "8 MB", collective: str = "", conditions: str = "", more: str = "") -> str:
    """Return a scenario of four collectives in one mode."""
    return _POLICY.format(policy=policy, size=size, collective=collective, conditions=conditions) + more


BOTH = 'reroute = "every 1"\nreembed = "every 2"'
CUT = '[[fault]]\nat = "collective 1"\nwhat = "link s0b0-s1b0 down"\nfor = "2 collectives"\n'
SLOW = '[[fault]]\nat = "collective 2"\nwhat = "agent 5 slow 4x"\n'
SPINE = '[[fault]]\nat = "collective 1"\nwhat = "switch s0p1 down"\nfor = "2 collectives"\n'
BY_TIME = 'every = "1 ms"\ninterval = "100 ms"'
CLASSES = """
[[class]]
name = "gold"
priority = 0
share = 0.2
ceiling = 0.6
[[class]]
name = "rest"
priority = 1
share = 0.3
[[job]]
name = "one"
kind = "alltoall"
ranks = [0, 1, 4, 5]
class = "gold"
[[job]]
name = "two"
kind = "alltoall"
ranks = [2, 3, 6, 7]
class = "rest"
"""
CASES = {
    "nothing is chosen": case(""),
    "every 1, every 2": case('reroute = "every 1"\nreembed = "every 2"'),
    "stale": case(f'{BOTH}\nknowledge = "stale 1"'),
    "drift": case('reroute = "drift 0.2"\nreembed = "drift 0.4"'),
    "gain": case('reroute = "gain 0.01"\nreembed = "gain 0.1"\nhorizon = 3'),
    "measured ends": case(f'{BOTH}\nknowledge = "measured ends"'),
    "measured ports": case('reroute = "every 1"\nreembed = "every 2"\nknowledge = "measured ports"'),
    "probed": case('reroute = "gain 0.05"\nreembed = "every 2"\nknowledge = "probed"'),
    "shared links": case(BOTH, collective='kind = "alltoall"'),
    "a cable fails": case('reroute = "every 4"\nreembed = "every 4"', more=CUT),
    "a cable fails, fixed paths": case('reembed = "every 2"', more=CUT),
    "a GPU is slow": case(f'{BOTH}\nknowledge = "measured ends"', more=SLOW),
    "conditions change within": case(
        'reroute = "every 5 ms"', size="64 MB", conditions='every = "1 ms"\ninterval = "100 ms"'
    ),
    "physical": case(BOTH, more='[fabric]\ngrain = "physical"\n'),
    "ports spread by hashes": case("", more='[fabric]\nrouting = "ecmp"\n'),
    "a cable fails while conditions change": case(
        'reroute = "every 1"\nreembed = "every 3"', size="64 MB", conditions=BY_TIME, more=CUT
    ),
    "a spine fails while conditions change": case(
        "", size="64 MB", conditions=BY_TIME, more=SPINE + '[fabric]\ngrain = "physical"\n'
    ),
    "classes while conditions change": case("", size="64 MB", conditions=BY_TIME, more=CLASSES),
    "counted while conditions change": case(
        BOTH, size="64 MB", conditions=BY_TIME, more='[control]\ncounted = true\ndelay = "1 ms"\n'
    ),
}
"""Scenarios by name, each with the mode MODE."""


def shown(outcome: Any) -> dict[str, Any]:
    """Return what an outcome shows, as JSON has it."""
    return {
        "number": outcome.number,
        "acted": [outcome.action.placement is not None, outcome.action.routing is not None],
        "placement": outcome.placement.tolist(),
        "path": outcome.path.tolist(),
        "links": outcome.links.tolist(),
        "sent_s": outcome.sent_s.tolist(),
        "arrived_s": outcome.arrived_s.tolist(),
    }
