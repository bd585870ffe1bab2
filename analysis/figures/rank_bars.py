"""What the timeline of a script's ranks shows, as a figure and for Perfetto."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Bar:
    """What ran on a rank, in s since the ranks' start, with what is known of it."""

    name: str
    begin_s: float
    end_s: float
    about: Mapping[str, Any]


@dataclass(frozen=True)
class RankBars:
    """A rank: its name, its steps, the kernels of each of its streams and the collectives of each of its groups by
    their names, and the times at which kernels ran, as disjoint intervals in s. A collective's name is its kind."""

    name: str
    steps: Sequence[Bar]
    streams: Mapping[str, Sequence[Bar]]
    groups: Mapping[str, Sequence[Bar]]
    computing_s: Sequence[tuple[float, float]]
