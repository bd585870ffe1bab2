"""Faults: read from a scenario's [[fault]] tables, checked, and applied to conditions. Pure.

    [[fault]]
    at = "40 ms into collective 12"   # or "collective 12": before it begins
    what = "link s0b0-s1b0 down"
    for = "3 collectives"             # or "200 ms"; without it the fault stays until the end

Collectives are numbered from 0, as in the results. A collective that is lost and run again counts twice towards the
duration of a fault. A duration in time counts the time in which collectives run, failed attempts included, and not the
pauses between them. With a program collectives are those that its ranks announce (`program.collective_server`), in the
order in which they begin. Both may also be times of its run, since the ranks' start:
at = "20 ms" and for = "30 ms". It may also begin at a mark, once a rank has printed a line with these words:
at = 'mark "epoch 3"', at = 'mark "epoch 3" of rank 2', or at = '20 ms after mark "epoch 3"'.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from scenarios.spec.values import Kind, read_tables
from topologies.conditions.trace import Trace
from topologies.errors import Mistake, did_you_mean, format_value, list_first
from topologies.fabric.fabric import Fabric
from topologies.fabric.failures import NO_CABLES, Cable, Cables, cable, cables_of, failed_links, reachable
from topologies.fabric.ports import links_in_grain
from topologies.units import format_delay, parse_delay_or_zero_s, parse_delay_s

MAX_FAULTS = 1000
"""Most faults of a scenario, and most outages in its trace: each is injected by itself."""
MAX_NUMBER = 10_000_000  # the most collectives of a scenario
MAX_SLOWER = 1000
_MAX_LENGTH = 200  # most characters of a text that is parsed
MAX_WORDS = 100
"""The most characters of the words of a mark."""
MAX_ATTEMPTS = 4
"""How many times a collective is begun before the run is given up."""

Floats = npt.NDArray[np.float64]
Ends = tuple[npt.NDArray[np.int16], npt.NDArray[np.int16]]

_NODE = r"[A-Za-z][A-Za-z0-9_]{0,8}"
_CABLE = "(?:#[0-9]{1,4})?"  # of several cables between two nodes
_NUMBER = r"[0-9]{1,9}(?:\.[0-9]{1,9})?"
_AT_FORMS = {
    "collective": re.compile(r"(?:(?P<after>.{1,40}?) into )?collective (?P<number>[0-9]{1,9})"),
    "program": re.compile(r"(?P<after>[0-9.]{1,30} ?[a-z\u00b5\u03bc]{1,4})"),
    "mark": re.compile(
        r"(?:(?P<after>[0-9.]{1,30} ?[a-z\u00b5\u03bc]{1,4}) after )?"
        rf'mark "(?P<words>[^"]{{1,{MAX_WORDS}}})"(?: of rank (?P<rank>[0-9]{{1,6}}))?'
    ),
}
_FOR_FORMS = {
    "collective": re.compile(r"(?P<number>[0-9]{1,9}) collectives?"),
    "program": re.compile(r"(?P<time>[0-9.]{1,30} ?[a-z\u00b5\u03bc]{1,4})"),
}
_WHAT_FORMS = {
    "link down": re.compile(rf"link (?P<target>{_NODE}-{_NODE}{_CABLE}) down"),
    "link loss": re.compile(rf"link (?P<target>{_NODE}-{_NODE}{_CABLE}) loss (?P<amount>{_NUMBER}) ?%"),
    "switch down": re.compile(rf"switch (?P<target>{_NODE}) down"),
    "controller killed": re.compile(r"controller killed"),
    "agent killed": re.compile(r"agent (?P<target>[0-9]{1,6}) killed"),
    "agent slow": re.compile(rf"agent (?P<target>[0-9]{{1,6}}) slow (?P<amount>{_NUMBER})x"),
}
_WHATS = (
    *("link A-B down", "link A-B loss 1 %", "switch S down", "controller killed", "agent R killed"),
    "agent R slow 10x",
)
_REPEATED = re.compile(r"every\b.*|.*\b(every|repeat(s|ed|edly|ing)?|periodic(ally)?)\b.*", re.IGNORECASE)
_INSTEAD = (
    "a [[fault]] happens once; allowed: a [[fault]] for each time, or for links that fail again and again a trace with "
    "rates of 0 and conditions.trace_repeat = true"
)
_REPEATS = dict.fromkeys(("every", "repeat", "repeats", "period", "interval", "count", "times"), _INSTEAD)
KINDS = tuple(_WHAT_FORMS)
CABLE_KINDS = ("link down", "switch down")
"""The kinds that take cables down."""
KILLED_KINDS = ("agent killed", "controller killed")
"""The kinds that end a process, which is started again."""
PLANNED_KINDS = (*CABLE_KINDS, "agent slow")
"""The kinds that change the conditions of the collectives at whose beginning they are in force, and with them decisions
and predictions."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault that is injected before a collective, or `after_s` seconds into it, and stays for `lasts` collectives.

    `collective` is an index from 0. `kind` is one of KINDS. `target` is a cable "a-b", a switch, the rank of an agent,
    or empty. `amount` is the share of frames that is lost, or the factor by which an agent is slower. A fault lasts for
    `lasts` collectives, or for `lasts_s` seconds in which collectives run; with both None it stays until the end.
    `is_traced` marks an outage in a trace, which no [[fault]] declares. A fault of a program (`of_program`) is injected
    `after_s` seconds after the ranks' start, and `lasts_s` are seconds of the run; its `collective` is 0 and means
    nothing. If it has a `mark`, `after_s` counts from the instant `marked_ns`, in ns since the ranks' start, at which a
    rank (`mark_rank`, None: any) has first printed a line with these words; until then that is None. If it is
    `announced`, `after_s` counts from the instant at which a rank has first asked for `collective`, also `marked_ns`,
    and it stays for `lasts` collectives.
    """

    collective: int
    kind: str
    target: str = ""
    amount: float = 0.0
    after_s: float | None = None
    lasts: int | None = None
    of_program: bool = False
    lasts_s: float | None = None
    mark: str | None = None
    mark_rank: int | None = None
    announced: bool = False
    marked_ns: int | None = field(default=None, compare=False)
    is_traced: bool = field(default=False, compare=False)

    @property
    def what(self) -> str:
        """The fault as a scenario writes it under `what`."""
        first, _, rest = self.kind.partition(" ")
        words = f"{first} {self.target} {rest}" if self.target else self.kind
        if self.kind == "link loss":
            return f"{words} {self.amount * 100:.9g} %"
        return f"{words} {self.amount:.9g}x" if self.kind == "agent slow" else words

    @property
    def at(self) -> str:
        """When the fault is injected, as a scenario writes it under `at`."""
        if self.mark is not None:
            after = f"{format_delay(self.after_s)} after " if self.after_s else ""
            return f'{after}mark "{self.mark}"{"" if self.mark_rank is None else f" of rank {self.mark_rank}"}'
        if self.of_program and not self.announced:
            return format_delay(self.after_s) if self.after_s else "0 s"
        collective = f"collective {self.collective}"
        return collective if self.after_s is None else f"{format_delay(self.after_s)} into {collective}"

    @property
    def words(self) -> str:
        """The fault in words, with its time unless it begins before collective 0, and how long it lasts."""
        at = "" if (self.collective, self.after_s) == (0, None) else f" at {self.at}"
        if self.lasts_s is not None or (self.of_program and not self.announced):
            return f"{self.what}{at}{'' if self.lasts_s is None else f' for {format_delay(self.lasts_s)}'}"
        lasts = "" if self.lasts is None else f" for {self.lasts:,} collective{'s' * (self.lasts != 1)}"
        return f"{self.what}{at}{lasts}"

    @property
    def is_throughout(self) -> bool:
        """Whether the fault is in force from the first collective to the end."""
        return (self.collective, self.after_s, self.is_undone) == (0, None, False)

    @property
    def is_undone(self) -> bool:
        """Whether the fault ends by itself before the run does."""
        return self.lasts is not None or self.lasts_s is not None

    @property
    def is_timed(self) -> bool:
        """Whether it is a fault of collectives that lasts for a time."""
        return self.lasts_s is not None and not self.of_program

    @property
    def is_awaited(self) -> bool:
        """Whether the fault begins at a mark that has not been printed yet, or at a collective that has not been
        announced yet, so that it has no time."""
        return (self.mark is not None or self.announced) and self.marked_ns is None

    @property
    def begins_ns(self) -> int:
        """When a fault of a program that is not awaited begins, in ns since the ranks' start."""
        return (self.marked_ns or 0) + round((self.after_s or 0.0) * 1e9)

    @property
    def lasts_ns(self) -> int | None:
        """How long a fault with a duration in time lasts, in ns; None for others."""
        return None if self.lasts_s is None else round(self.lasts_s * 1e9)

    @property
    def is_short(self) -> bool:
        """Whether the fault ends a process and is over with that: it does not affect the restarted process."""
        return self.kind in KILLED_KINDS and not self.is_undone

    @property
    def ends_ns(self) -> int | None:
        """When a fault of a program ends, in ns since the ranks' start; None if it stays."""
        return None if self.lasts_ns is None else self.begins_ns + self.lasts_ns

    def is_over(self, collective: int) -> bool:
        """Whether the fault has ended before this collective."""
        return self.lasts is not None and collective >= self.collective + self.lasts

    @property
    def ends(self) -> tuple[str, str]:
        """The two ends of the link that is the target."""
        a, _, b = self.target.partition("-")
        return a, b

    def written(self) -> dict[str, str]:
        """Return the [[fault]] table that declares this fault."""
        table = {"at": self.at, "what": self.what}
        if self.lasts_s is not None:
            return table | {"for": format_delay(self.lasts_s)}
        return table if self.lasts is None else table | {"for": f"{self.lasts} collective{'s' * (self.lasts != 1)}"}


def _text_kind(
    allowed: str,
    patterns: Mapping[str, re.Pattern[str]],
    read: Callable[[str, re.Match[str]], dict[str, Any]],
    meant: Callable[[str], str] = lambda _: "",
) -> Kind:
    """Return a kind of text: the first of `patterns` that matches names the form, and `read` turns the name and the
    match into fields of a fault. `meant` returns a hint to a text that none matches."""

    def convert(text: str) -> dict[str, Any]:
        plain = " ".join(text.split()) if len(text) <= _MAX_LENGTH else ""
        for name, pattern in patterns.items():
            if match := pattern.fullmatch(plain):
                return read(name, match)
        if _REPEATED.fullmatch(plain):
            raise ValueError(f"{format_value(text)} repeats, and {_INSTEAD}")
        raise ValueError(f"{format_value(text)} is not understood; allowed: {allowed}{meant(plain)}")

    return Kind(allowed, (str,), convert)


def _read_at(form: str, match: re.Match[str]) -> dict[str, Any]:
    if form == "mark":
        rank = None if match["rank"] is None else int(match["rank"])
        after_s = parse_delay_or_zero_s(match["after"]) if match["after"] else 0.0
        words = match["words"].strip()
        if not words:
            raise ValueError('mark " " has no words; allowed: a part of a line that a rank prints')
        return {"collective": 0, "after_s": after_s, "of_program": True, "mark": words, "mark_rank": rank}
    if form == "program":
        return {"collective": 0, "after_s": parse_delay_or_zero_s(match["after"]), "of_program": True}
    number = int(match["number"])
    if number > MAX_NUMBER:
        raise ValueError(f"collective {number:,} is too large; allowed: 0 to {MAX_NUMBER:,}")
    return {"collective": number, "after_s": parse_delay_s(match["after"]) if match["after"] else None}


def _read_what(kind: str, match: re.Match[str]) -> dict[str, Any]:
    parts = match.groupdict()
    target, amount = parts.get("target", ""), float(parts.get("amount", 0))
    if kind == "link loss" and not 0 < amount <= 100:
        raise ValueError(f"{amount:g} % cannot be lost; allowed: more than 0 % and up to 100 %")
    if kind == "agent slow" and not 1 < amount <= MAX_SLOWER:
        raise ValueError(f"{amount:g}x is not slower; allowed: more than 1x and up to {MAX_SLOWER}x")
    target = str(int(target)) if kind.startswith("agent") else target
    return {"kind": kind, "target": target, "amount": amount / 100 if kind == "link loss" else amount}


def _what_was_meant(text: str) -> str:
    """Return a hint to the fault that an unknown text may mean, with the link, switch or rank that it names."""
    words = text.lower().split(maxsplit=2)
    thing, target = words[0] if words else "", text.split()[1] if len(words) > 1 else ""
    target = re.sub(r"->|[>:]", "-", target)
    if target and not re.search(r"[\d-]", target):  # the text names no link, switch or rank
        return did_you_mean(text, _WHATS)
    known = [form.replace("A-B", target).replace(" S ", f" {target} ").replace(" R ", f" {target} ") for form in _WHATS]
    verb = words[2] if len(words) > 2 else ""
    if not any(sign.isdigit() for sign in verb):  # an amount would be as good as a verb: "fails" is close to "loss 1 %"
        alike = [form for form in known if verb and form.split(maxsplit=2)[-1].startswith(verb[:2])]
        known = alike or [form for form, named in zip(known, _WHATS, strict=True) if not re.search(r"\d", named)]
    return did_you_mean(" ".join([thing, target, *words[2:]]), known)


def _read_for(form: str, match: re.Match[str]) -> dict[str, Any]:
    if form == "program":
        return {"lasts_s": parse_delay_s(match["time"])}
    number = int(match["number"])
    if not 1 <= number <= MAX_NUMBER:
        raise ValueError(f"{number:,} collectives are not allowed; allowed: 1 to {MAX_NUMBER:,}")
    return {"lasts": number}


KEYS = {
    "at": _text_kind(
        '"collective 12" and "40 ms into collective 12", and with a program "20 ms", \'mark "epoch 3"\', '
        "'mark \"epoch 3\" of rank 2' and '20 ms after mark \"epoch 3\"'",
        _AT_FORMS,
        _read_at,
    ),
    "what": _text_kind(
        ", ".join(f'"{form}"' for form in _WHATS),
        _WHAT_FORMS,
        _read_what,
        _what_was_meant,
    ),
    "for": _text_kind('"3 collectives" and "200 ms"; with a program a time', _FOR_FORMS, _read_for),
}
"""The keys of a [[fault]] table with their kinds."""


def read(tables: list[object]) -> tuple[Fault, ...]:
    """Return the faults that a scenario's tables declare; raises SpecError with mistakes such as "fault[1].at"."""
    values = read_tables(
        "fault", tables, KEYS, most=2 * MAX_FAULTS, required=("at", "what"), instead=_REPEATS, check=_check
    )
    return tuple(Fault(**dict(chain.from_iterable(part.items() for part in parts.values()))) for parts in values)


def _check(table: dict[str, Any], values: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Check the values of one table against each other, for `read_tables`."""
    if "at" not in values or "for" not in values:
        return
    in_time, of_program = "lasts_s" in values["for"], "of_program" in values["at"]
    if of_program and not in_time:
        allowed = 'allowed: a time, such as "30 ms"'
        yield ".for", f"{format_value(table['for'])} does not fit a fault at a time; {allowed}"
    if in_time and not of_program and values.get("what", {}).get("kind") == "controller killed":
        why = "is a time, and a controller that was killed is started again between collectives"
        yield ".for", f'{format_value(table["for"])} {why}; allowed: a number of them, such as "3 collectives"'


def unused(table: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield the keys of a [[fault]] table that have no effect because of its others, with the reason."""
    if KEYS["what"].read(table["what"])["kind"] == "agent killed":
        is_of_program = "of_program" in KEYS["at"].read(table["at"])
        yield "for", f"a killed agent {'stays dead' if is_of_program else 'is restarted once it is missed'}"


def check(faults: Collection[Fault], fabric: Fabric, *, count: int) -> Iterator[Mistake]:
    """Yield what is wrong with these faults in this fabric if `count` collectives are run."""
    if (outages := sum(fault.is_traced for fault in faults)) > MAX_FAULTS:
        text = f"{outages:,} outages in {count:,} collectives are too many; allowed: {MAX_FAULTS:,}"
        yield Mistake("conditions.trace", text)
    cables = {cable(*c.directions[0]): c.name for c in fabric.cables}
    switches = [switch.name for switch in fabric.switches]
    for number, fault in enumerate(faults, 1):
        if fault.collective >= count:
            text = f"collective {fault.collective:,} is not run; allowed: 0 to {count - 1:,}"
            yield Mistake(f"fault[{number}].at", text)
        wrong = ""
        if fault.kind.startswith("link") and cable(*fault.ends) not in cables:
            hint = did_you_mean(fault.target, cables.values()) or f", such as {next(reversed(cables.values()))}"
            wrong = f"{fault.target} is not a link; allowed: a cable of the fabric{hint}"
        elif fault.kind.startswith("switch") and fault.target not in switches:
            hint = did_you_mean(fault.target, switches)
            wrong = f"{fault.target} is not a switch; allowed: {list_first(switches, 12)}{hint}"
        elif fault.kind.startswith("agent") and int(fault.target) >= len(fabric.gpus):
            wrong = f"there is no agent {fault.target}; allowed: 0 to {len(fabric.gpus) - 1}"
        if wrong:
            yield Mistake(f"fault[{number}].what", wrong)


def outages(trace: Trace, fabric: Fabric, *, count: int) -> tuple[Fault, ...]:
    """Return the outages in the first `count` collectives of a trace, whose links are those of the fabric's grain.

    A link without a rate in one direction is down in both: no connection works without acknowledgements.
    """
    links, runs = links_in_grain(fabric).all, dict[Cable, list[tuple[int, int]]]()
    for link, first, stop in trace.outages():
        for begun in range(0, count if trace.repeats else 1, trace.length):
            if first + begun < count:
                runs.setdefault(cable(links[link].src, links[link].far_end), []).append((first + begun, stop + begun))
    struck = []
    for c in fabric.cables:
        for first, stop in _united(sorted(runs.get(cable(*c.directions[0]), ()))):
            lasts = None if trace.limit is not None and stop >= trace.limit else stop - first
            down = Fault(collective=first, kind="link down", target=c.name, lasts=lasts, is_traced=True)
            struck.append(down)
    return tuple(sorted(struck, key=lambda fault: fault.collective))


def _united(runs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return sorted runs (first, stop) with those that overlap or touch as one."""
    united: list[tuple[int, int]] = []
    for first, stop in runs:
        if united and first <= united[-1][1]:
            united[-1] = united[-1][0], max(stop, united[-1][1])
        else:
            united.append((first, stop))
    return united


def active_at(faults: Iterable[Fault], at_ns: int) -> tuple[Fault, ...]:
    """Return the faults of a program that are in force at a time, in ns since the ranks' start."""
    begun = [one for one in faults if one.of_program and not one.is_awaited and one.begins_ns <= at_ns]
    return tuple(one for one in begun if one.ends_ns is None or at_ns < one.ends_ns)


def in_time(faults: Iterable[Fault]) -> tuple[Fault, ...]:
    """Return a program's faults, all with times, or at collectives that its ranks announce. Of a trace the first row is
    in force throughout, as rates that change by time cannot be 0: outages that begin later are left out."""
    timed = []
    for fault in faults:
        if not fault.is_traced:
            timed.append(fault if fault.of_program else replace(fault, of_program=True, announced=True))
        elif fault.collective == 0:
            timed.append(replace(fault, of_program=True, after_s=0.0, lasts=None))
    return tuple(timed)


def check_times(faults: Iterable[Fault], *, of_program: bool) -> Iterator[Mistake]:
    """Yield the declared faults whose times are those of a program although none runs."""
    for number, fault in enumerate(faults, 1):
        if of_program or not fault.of_program:
            continue
        if fault.mark is not None:
            text = f'{fault.at} is printed by a program, and none runs; allowed: "collective 0"'
            yield Mistake(f"fault[{number}].at", text)
        else:
            allowed = f'allowed: "collective 12", "{fault.at} into collective 0"'
            text = f'"{fault.at}" is a time of a program, and none runs; {allowed}'
            yield Mistake(f"fault[{number}].at", text)


def active(faults: Iterable[Fault], collective: int) -> tuple[Fault, ...]:
    """Return the faults that are in force when a collective begins, in a run in which no collective is lost."""
    in_force = []
    for fault in faults:
        first = fault.collective if fault.after_s is None else fault.collective + 1
        if first <= collective and not fault.is_over(collective):
            in_force.append(fault)
    return tuple(in_force)


def for_completed_attempts(faults: Iterable[Fault], fabric: Fabric, ends: Ends) -> tuple[Fault, ...]:
    """Return the faults with the durations that completed attempts see.

    A collective whose GPUs are cut off from each other is lost and begun again, and every attempt counts as one of the
    collectives that a fault lasts. `ends` are the ranks that flows join.
    """
    faults_left = list(faults)
    for number in sorted({fault.collective for fault in faults_left}):
        for _ in range(MAX_ATTEMPTS - 1):
            active_now = [
                index
                for index, fault in enumerate(faults_left)
                if fault.collective <= number and not fault.is_over(number)
            ]
            dead = dead_cables([faults_left[index] for index in active_now], fabric)
            if not dead or reachable(fabric, dead)[ends].all():
                break
            faults_left = [
                replace(fault, lasts=fault.lasts - 1) if index in active_now and fault.lasts is not None else fault
                for index, fault in enumerate(faults_left)
            ]
    return tuple(faults_left)


def dead_cables(faults: Collection[Fault], fabric: Fabric) -> Cables:
    """Return the cables that carry nothing while these faults are in force."""
    links = [cable(*fault.ends) for fault in faults if fault.kind == "link down"]
    return NO_CABLES.union(links, *(cables_of(fabric, fault.target) for fault in faults if fault.kind == "switch down"))


def lacks_controller(faults: Iterable[Fault]) -> bool:
    """Return whether these faults keep the controller away; if killed without a duration, it is restarted at once."""
    return any(fault.kind == "controller killed" and fault.is_undone for fault in faults)


def slowed(rates_bps: Floats, faults: Collection[Fault], fabric: Fabric) -> Floats:
    """Return the rates, [..., links or ports], at which a slow agent takes `amount` times as long to send."""
    slowed_bps = rates_bps.copy()
    for fault in faults:
        if fault.kind == "agent slow":
            name = fabric.gpus[int(fault.target)].name
            slowed_bps[..., [link.index for link in links_in_grain(fabric).all if link.src == name]] /= fault.amount
    return slowed_bps


def planned_rates_bps(rates_bps: Floats, faults: Collection[Fault], fabric: Fabric) -> Floats:
    """Return the rates of logical links, [..., links], that the planner assumes: slowed, 0 without any path.

    `rates_bps` are the rates of logical links or of ports.
    """
    dead = dead_cables(faults, fabric)
    slowed_bps = links_in_grain(fabric, dead).slowest_bps(slowed(rates_bps, faults, fabric))
    slowed_bps[..., list(failed_links(fabric, dead))] = 0.0
    return slowed_bps
