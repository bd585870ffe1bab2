"""The rates of links in words: their ranges, and that they are drawn at random."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from topologies.conditions.link_overrides import resolved
from topologies.conditions.sampler import ConditionsSpec, ranges_bps, sampler, trace_of
from topologies.errors import ConditionsError, list_all
from topologies.fabric.fabric import Fabric, build_fabric
from topologies.fabric.ports import links_in_grain
from topologies.units import format_rate_range

WAN, WITHIN = "WAN", "within sites"
_KEYS = {WAN: "conditions.wan_rate", WITHIN: "conditions.intra_rate"}
_OF_LINKS = "conditions.links"
_MOST = 3  # ranges that are named one by one

Range = tuple[int, int]


def ranges_of(fabric: Fabric, spec: ConditionsSpec) -> dict[str, tuple[Range, ...]]:
    """Return the different ranges of rates, bit/s, of the WAN's links and of those within sites, by WAN and WITHIN.

    They are those that the scenario gives: `fabric.oversubscription` multiplies them for ports between switches. Rates
    of a trace have none. Raises ConditionsError for entries of `conditions.links` that match no link.
    """
    found: dict[str, dict[Range, None]] = {}
    for part, _, one in _by_link(fabric, spec):
        found.setdefault(part, {})[one] = None
    return {part: tuple(found[part]) for part in (WAN, WITHIN) if part in found}


def _by_link(fabric: Fabric, spec: ConditionsSpec) -> Iterator[tuple[str, str, Range]]:
    """Yield of each link that has a range of rates whether it is one of the WAN, the key that gives the range, and the
    range, in bit/s, as `ranges_of` has them. A link with a rate of its own has no key."""
    drawn = _drawn(fabric, spec)
    if fabric.spec.oversubscription:
        fabric = build_fabric(replace(fabric.spec, oversubscription=()))
    entries = resolved(fabric, spec.links)
    chosen = {index for entry, indices in entries if entry.rate_bps is not None for index in indices}
    ranges = zip(links_in_grain(fabric).all, *ranges_bps(fabric, spec).tolist(), strict=True)
    for at, (link, low, high) in enumerate(ranges):
        part = WAN if link.kind == "wan" else WITHIN
        key = _OF_LINKS if at in chosen else "" if link.name in fabric.wan.capacity_bps else _KEYS[part]
        if part in drawn:
            yield part, key, (round(low), round(high))


def _drawn(fabric: Fabric, spec: ConditionsSpec) -> tuple[str, ...]:
    """Return which rates are drawn: beside a trace those within sites if it omits them, as far as it can be read."""
    if spec.sampler != "trace":
        return WAN, WITHIN
    try:
        trace = trace_of(sampler(fabric, spec, seed=0))
    except ConditionsError:  # the file is gone
        return ()
    return () if trace is None or trace.unlisted is None else (WITHIN,)


def wan_links_sentence(configurations: Iterable[tuple[Fabric, ConditionsSpec]]) -> str:
    """Return how many links the WAN of these configurations has, if all have the same constant rate in each and more
    than one between two sites: that rate is not the WAN's. "" otherwise."""
    told = set[tuple[int, Range]]()
    for fabric, spec in configurations:
        rates, wan = ranges_of(fabric, spec).get(WAN, ()), [one for one in fabric.links if one.kind == "wan"]
        is_direct = all({one.src, one.dst} <= {*fabric.border_routers} for one in wan)
        is_several = any(len(paths) > 1 for paths in fabric.paths_between.values())
        if len(rates) != 1 or rates[0][0] != rates[0][1] or not (is_direct and is_several):
            return ""
        told.add((len(wan) // 2, rates[0]))
    if len(told) != 1:
        return ""
    ((count, rate),) = told
    return f"the WAN has {count:,} links of {range_words([rate])} each, in each direction"


def exact_from(fabric: Fabric, spec: ConditionsSpec, *, is_measured: bool, is_drawn: bool) -> int | None:
    """Return from how many collectives on times that are all alike are exact, as nothing is drawn at random: one
    predicted, or two measured ones; None if rates vary, or if something else `is_drawn`."""
    varies = spec.is_recorded or spec.moves is not None or is_drawn
    if varies or are_drawn(fabric, spec):
        return None
    return 2 if is_measured else 1


def range_words(ranges: Iterable[Range]) -> str:
    """Return ranges in words: "10-100 Gbit/s"; of more than three, the lowest and the highest rate."""
    distinct = list(dict.fromkeys(ranges))
    if len(distinct) > _MOST:
        distinct = [(min(low for low, _ in distinct), max(high for _, high in distinct))]
    return list_all([format_rate_range(one) for one in distinct])


def untold(ranges: Sequence[Mapping[str, Sequence[Range]]], told: Collection[str]) -> list[str]:
    """Return the ranges of configurations in words for a title, without those that it tells otherwise: `told` are its
    other words, such as "wan rate 40 Gbit/s"."""
    words = []
    for part, name, form in ((WAN, "wan rate ", "WAN {}"), (WITHIN, "intra rate ", "{} within sites")):
        of_part = [each for one in ranges for each in one.get(part, ())]
        if not of_part or any(one.startswith(name) for one in told):
            continue
        rates = range_words(of_part)
        if f"{part.lower()} {rates}" not in told:  # as conditions.links has a rate of all WAN links
            words.append(form.format(rates))
    return words


def drawn_sentence(configurations: Iterable[tuple[Fabric, ConditionsSpec]]) -> str:
    """Return a sentence on the rates of these configurations that are drawn at random, with the keys that give their
    ranges; "" if all are constant."""
    drawn: dict[tuple[str, str], list[Range]] = {}
    shares = dict(_KEYS)
    for fabric, spec in configurations:
        if fabric.spec.oversubscription:
            shares[WITHIN] = f"{_KEYS[WITHIN]}; ports between switches have more or less, by fabric.oversubscription"
        if fabric.spec.rails is not None:
            shares = {part: f"{shares[part]}; ports of a plane have their share" for part in shares}
        for part, key, (low, high) in _by_link(fabric, spec):
            if low < high:  # a constant rate beside it is not drawn
                drawn.setdefault((part, key), []).append((low, high))
    if not drawn:
        return ""
    order = [(part, key) for part in (WAN, WITHIN) for key in (_KEYS[part], _OF_LINKS)]
    parts = [
        f"{part} {range_words(drawn[part, key])} ({key if key == _OF_LINKS else shares[part]})"
        for part, key in order
        if (part, key) in drawn
    ]
    return f"Rates are drawn at random: {', '.join(parts)}."


def are_drawn(fabric: Fabric, spec: ConditionsSpec) -> bool:
    """Return whether any link's rate is drawn at random."""
    return any(low < high for _, _, (low, high) in _by_link(fabric, spec))
