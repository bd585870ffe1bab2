"""Each link's values over time, of the readings of all files, and what was assumed of them. Pure."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain, pairwise, permutations
from statistics import median

from topologies.conditions.clock import MAX_TIME_NS, Clock, as_date, span_words
from topologies.conditions.convert.links import is_of_wan, is_within_site, links_by_name, links_of
from topologies.conditions.convert.readings import ConvertError, Reading, counted, has_unit, inferred_unit, quantity
from topologies.conditions.link_overrides import MAX_ENTRIES
from topologies.conditions.sampler import ConditionsSpec
from topologies.conditions.trace import BEGINS, GAP
from topologies.conditions.wan_keys import in_toml, wan_keys
from topologies.errors import format_value, list_first
from topologies.fabric.link_names import reverse
from topologies.units import format_delay, format_rate

_MAX_NAMED, _MAX_MISSING = 3, 12
_USUAL_DELAY = format_delay(ConditionsSpec().wan_delay_s)
_WITHOUT_DELAY = f"such a link has the delay conditions.wan_delay in a run, {_USUAL_DELAY} unless that is set"
_BORDER = re.compile(r"s([0-9]+)b[0-9]+")
_UNMEASURED = {"", "-", "--", "n/a", "na", "null", "none"}


@dataclass(frozen=True)
class _Value:
    """A link's value at a time (ns from the first one that was read), and the place of both in the files."""

    time_ns: int
    time: str
    amount: Decimal
    where: str
    name: str


class Series:
    """The values that readings have of each link; `notes` tell what was assumed.

    `sites` are the nodes of sites, `links` the links that names stand for, and `unit` is that of values that name none,
    "" to infer it. With `both_directions` the values of a WAN link's one direction are those of the other one, too, if
    that has none. Raises ConvertError for a malformed time, value or link, and without any value. The times of delays,
    which are constant, are not read.
    """

    def __init__(
        self,
        readings: Sequence[Reading],
        sites: Mapping[str, str],
        links: Mapping[str, tuple[str, ...]],
        *,
        kind: str,
        unit: str = "",
        time_unit: str | None = None,
        both_directions: bool = False,
    ) -> None:
        self.kind, self.notes = kind, list[str]()
        self._begins_ns: int | None = None  # the first time, in ns since 1970
        self._values: dict[str, list[_Value]] = {}
        measured = [one for one in readings if one.value.casefold() not in _UNMEASURED]
        missing = [links_by_name(one, sites, links) for one in readings if one.value.casefold() in _UNMEASURED]
        if unit and (own := [one for one in measured if has_unit(one)]):
            self.notes.append(f"--unit {unit} does not hold for {counted(len(own), 'value')} with a unit of their own")
        unit = unit or self._inferred(measured)
        times = self._times(measured, time_unit) if kind == "rates" else [0] * len(measured)
        self._without = {link for found in missing for link in found}
        to_itself, undirected = 0, dict[str, None]()
        for one, time_ns in zip(measured, times, strict=True):
            found, name = links_of(one, sites, links), ">".join(one.ends)
            to_itself += not found
            amount = quantity(one, one.unit or unit, kind) if found else Decimal(0)
            for link in found:
                self._values.setdefault(link, []).append(_Value(time_ns, one.time, amount, one.where, name))
            if len(found) == 2:
                undirected[name] = None
        if undirected:
            self.notes.append(f"{list_first([*undirected], _MAX_NAMED)}: each value holds for both directions")
        if to_itself:
            self.notes.append(f"{counted(to_itself, 'value')} from a site to itself not used")
        if not self._values:
            raise ConvertError("no link has a value, among those read; allowed: one or more")
        if both_directions and (lacking := self._one_way()):
            self._values |= {reverse(link): self._values[link] for link in lacking}
            self.notes.append(f"{list_first(lacking, _MAX_NAMED)}: each value is used for both directions")
        self.notes[:0] = self._missing([found for found in missing if not all(map(is_within_site, found))], measured)

    def _one_way(self) -> list[str]:
        """Return the links of the WAN whose other direction has no value."""
        return [link for link in self._values if is_of_wan(link) and reverse(link) not in self._values]

    def _missing(self, missing: Sequence[Sequence[str]], measured: Sequence[Reading]) -> Iterator[str]:
        """Yield how many values of links are missing, and the links that have none at all and what they then have.

        `missing` are the links of each missing value.
        """
        some = [links for links in missing if any(link in self._values for link in links)]
        if some:
            holds = "the previous one holds" if self.kind == "rates" else "the others of the link are used"
            count = f"{len(some):,} of {len(measured) + len(missing):,}"
            yield f"{count} values missing, of {_first_of(some)}: {holds}"
        if none := [links for links in missing if not any(link in self._values for link in links)]:
            then = "the trace has no rate of such a link" if self.kind == "rates" else _WITHOUT_DELAY
            yield f"no value for {_first_of(none)}: {then}"

    def _unnamed(self, then: str) -> Iterator[str]:
        """Yield the links between two of the measured nodes that no reading names, and what `then` holds for them."""
        wan = [link.partition("#")[0] for link in self._values if is_of_wan(link)]
        nodes = sorted({node for link in wan for node in link.split(">")})
        named = {link.partition("#")[0] for link in (*self._values, *self._without)}
        pairs = (f"{one}>{other}" for one, other in permutations(nodes, 2))
        if unnamed := [pair for pair in pairs if pair not in named and not is_within_site(pair)]:
            yield f"no row names {list_first(unnamed, _MAX_MISSING)}: {then}"

    def _inferred(self, measured: Sequence[Reading]) -> str:
        """Return the unit of values that name none, and tell it; "" if all name one."""
        bare = [one for one in measured if not has_unit(one)]
        if not bare:
            return ""
        unit = inferred_unit(bare, self.kind)
        why = "the usual unit" if self.kind == "delays" else "by their size"
        self.notes.append(
            f"{counted(len(bare), 'value')} without a unit, taken as {unit}, {why}; --unit names another one"
        )
        return unit

    def _times(self, measured: Sequence[Reading], unit: str | None) -> list[int]:
        """Return the times in ns from the earliest one, and tell how they were read."""
        if not any(one.time for one in measured):
            return [0] * len(measured)
        clock, times = Clock(unit), list[int]()
        for one in measured:
            try:
                times.append(clock.ns(one.time))
            except ValueError as error:
                raise ConvertError(f"{one.where}: {error}") from None
        earliest = min(times)
        if max(times) - earliest > MAX_TIME_NS:
            raise ConvertError(f"{measured[times.index(max(times))].where}: its time is not within 1e9 s of the first")
        begin = measured[times.index(earliest)].time
        from_begin = Clock(unit)
        from_begin.ns(begin)  # the first row that was read may be a later one
        self.notes += from_begin.notes(begin)
        self._begins_ns = from_begin.begins_ns
        return [time_ns - earliest for time_ns in times]

    # --- a trace ------------------------------------------------------------------------------------------------------

    def trace(self) -> str:
        """Return the rates as a trace, and tell gaps; raises ConvertError for two rates of a link at one time."""
        begun: dict[str, int] = {}
        rows = list[tuple[int, str, str]]()
        for link, values in self._values.items():
            ordered = sorted(values, key=lambda one: one.time_ns)
            self._check_once(link, ordered)
            begun[link] = ordered[0].time_ns
            rows += [(one.time_ns, link, _rate(one.amount)) for one in ordered]
            if ordered[0].time_ns:
                rows.append((0, link, _rate(ordered[0].amount)))
            self.notes += _gaps(link, ordered, self._begins_ns)
        if late := [link for link, time_ns in begun.items() if time_ns]:
            which = list_first(late, _MAX_NAMED)
            self.notes.append(f"no value at the first time for {which}: the first one of the link holds until then")
        down = sum(not one.amount for values in self._values.values() for one in values)
        if down:
            self.notes.append(f"{counted(down, 'rate')} of 0: the link is down then")
        if keys := wan_keys(self._values):
            self.notes.append(f"the scenario needs a WAN with these links and no others:\n{in_toml(keys)}")
            self.notes += _without_choice(self._values)
        elif lacking := self._one_way():
            links = list_first(lacking, _MAX_NAMED)
            self.notes.append(
                f"rates are given in one direction only, of {links}, and a WAN link needs both: --both-directions uses "
                "each value for both"
            )
        else:
            self.notes += self._unnamed("the trace has no rate of such a link, and a WAN that has it needs one")
        begins = "" if self._begins_ns is None else f"{BEGINS}{as_date(self._begins_ns)}\n"
        return f"{begins}time,link,rate\n" + "".join(
            f"{_seconds(at)},{link},{rate}\n" for at, link, rate in sorted(rows)
        )

    @staticmethod
    def _check_once(link: str, ordered: Sequence[_Value]) -> None:
        for one, other in pairwise(ordered):
            if one.time_ns == other.time_ns:
                at = f"time {format_value(other.time)}" if other.time else "one time, as its file names none"
                parallel = f"{link.partition('#')[0].replace('>', '-')}#2"
                hint = f", and another link for another cable: --link {format_value(f'{other.name}={parallel}')}"
                allowed = f"one{hint if other.name != one.name else ''}"
                raise ConvertError(
                    f"{other.where}: {link} has a second value at {at} ({one.where}); allowed: {allowed}"
                )

    # --- delays -------------------------------------------------------------------------------------------------------

    def delays(self, *, is_round_trip: bool) -> str:
        """Return the links' delays as TOML, of several values of a link their median, of round trips the half."""
        if len(self._values) > MAX_ENTRIES:
            raise ConvertError(f"{len(self._values):,} links have delays; allowed: {MAX_ENTRIES:,}")
        if several := [link for link, values in self._values.items() if len(values) > 1]:
            self.notes.append(f"several delays of {list_first(several, _MAX_NAMED)}: the median is used")
        halves = "round trips: half of each is a link's delay" if is_round_trip else "one-way delays; --rtt halves them"
        self.notes.append(f"the values are taken as {halves}")
        self.notes += self._unnamed(_WITHOUT_DELAY)
        lines = ["[conditions.links]"]
        for link, values in sorted(self._values.items()):
            delay_s = float(median(one.amount for one in values)) / (2 if is_round_trip else 1)
            lines.append(f'"{link}" = {{ delay = "{_delay(delay_s)}" }}')
        return "\n".join(lines) + "\n"


def _first_of(links: Iterable[Iterable[str]]) -> str:
    return list_first(list(dict.fromkeys(link for some in links for link in some)), _MAX_MISSING)


def _gaps(link: str, ordered: Sequence[_Value], begins_ns: int | None) -> Iterator[str]:
    """Yield a sentence on a link's steps that are longer than GAP times their median, in the words of a run's note."""
    steps = [(one.time_ns, other.time_ns) for one, other in pairwise(ordered)]
    usual_ns = median(end - begin for begin, end in steps) if steps else 0
    long = [one for one in steps if one[1] - one[0] > Decimal(GAP) * Decimal(usual_ns)]
    if long:
        words = [span_words(*one, begins_ns) for one in long]
        usual, gaps = format_delay(usual_ns / 1e9) if usual_ns else "0 s", counted(len(long), "gap")
        spans = f"{list_first(words, _MAX_NAMED)} (the median step is {usual})"
        yield f"{link} has {gaps}, in which the previous value holds: {spans}"


def _without_choice(links: Iterable[str]) -> Iterator[str]:
    """Yield that re-routing has nothing to choose, if three sites or more have at most one link between each two."""
    ends = [[_BORDER.fullmatch(node) for node in link.split(">")] for link in links if is_of_wan(link)]
    between = [tuple(end[1] for end in pair if end) for pair in ends]
    if len({*chain.from_iterable(between)}) > 2 and len({*between}) == len(between) and all(map(all, ends)):
        routers = "if cities pass on traffic, make them routers of fabric.wan, with a link from each site to its own"
        routers += ", which the trace needs rows for, too (a rate above all others; conditions.links has their delays)"
        yield f"no two sites have more than one path here, so re-routing has nothing to choose: {routers}"


def _seconds(time_ns: int) -> str:
    whole, rest = divmod(time_ns, 10**9)
    return f"{whole}.{rest:09d}".rstrip("0").rstrip(".")


def _rate(amount: Decimal) -> str:
    return format_rate(int(amount)) if amount else "0 bit/s"


def _delay(delay_s: float) -> str:
    return format_delay(max(delay_s, 1e-9)) if delay_s else "0 s"
