"""Numbers of collectives, times, shares and intervals in words, with as many digits as they need."""

import math
from collections.abc import Sequence

from analysis.statistics.intervals import ALL_SAME, FEW, FEW_BLOCKS, MIN_COLLECTIVES, SAME_TIME, Interval, Numbers
from analysis.statistics.jobs_in_words import COLLECTIVE_NAMES
from topologies.errors import list_all
from topologies.units import plural

ROUNDING = SAME_TIME


def collective_name(kind: str, iterations: int = 1) -> str:
    """Return the name in text of a kind of collective, which of training has so many `iterations`: one whose gradients
    are summed once in several is a round of them."""
    name = COLLECTIVE_NAMES.get(kind, "collective")
    return name if iterations == 1 else f"round of {iterations:,} {plural(name)}"


_MAX_DIGITS = 6


def counted(
    names: Sequence[str], counts: Sequence[int], measured: Sequence[bool], *, seeds: str = "", each: bool = True
) -> str:
    """Return the number of collectives of these names and where they come from: "100,000 AllGathers (timing model)"; of
    several seeds "3 seeds of 20 AllGathers each (measured)"."""
    number = f"{min(counts):,}" if len(set(counts)) == 1 else f"{min(counts):,} to {max(counts):,}"
    engines = dict.fromkeys("measured" if one else "timing model" for one in measured)
    name = names[0] if len({*names}) == 1 else "collective"
    name = name if max(counts) == 1 else plural(name)
    of_seeds = f"{seeds} of " if seeds else ""
    return f"{of_seeds}{number} {name}{' each' if each or of_seeds else ''} ({list_all(list(engines))})"


def all_words(number: int) -> str:
    """Return all of so many things in words: "both", "all 7"."""
    return "both" if number == 2 else f"all {number:,}"


def part_words(number: Numbers, whole: int) -> str:
    """Return how many collectives have these numbers, of a run's `whole`: "600", "first 12 of 600", "12 of 600"."""
    if number.size >= whole:
        return f"{number.size:,}"
    is_first = number.size > 0 and int(number.max()) == number.size - 1
    return f"{'first ' * is_first}{number.size:,} of {whole:,}"


def quoted(name: str) -> str:
    """Return a name as it stands in a sentence: in quotes if it has a comma and a blank, as lists and clauses do."""
    return f'"{name}"' if ", " in name and not name.startswith('"') else name


def at_words(values: str) -> str:
    """Return where something was found: "at 8 MB", "without faults"."""
    return values if values.startswith("without ") and ", " not in values else f"at {quoted(values)}"


_HELP = {
    FEW: f"{MIN_COLLECTIVES} or more",
    FEW_BLOCKS: "more seeds of drawn rates, or more collectives of a trace, have more",
}
"""What would give an interval, for each reason that does not tell it by itself."""


def why_none(gains: Sequence[Interval]) -> str:
    """Return why the first of these has no interval, and what would help."""
    why = gains[0].why
    return f"{why}: {_HELP[why]}" if why in _HELP else why


ALIKE = " (the same in every collective)"
"""What is told beside a number that all collectives share."""


def interval_words(interval: Interval, scale: float, unit: str, word: str = "") -> str:
    """Return an interval in brackets, with as many digits as tell its ends apart. A number that needs none has neither
    bounds nor a reason, and no words."""
    if math.isnan(interval.low):
        return "" if not interval.why else f" ({why_none([interval])})"
    if is_alike(interval):
        return ALIKE if not word else " (the same in every collective of each)"
    low, high = ends(interval, scale, 1 if unit == " %" else _digits(interval.value * scale))
    if low == high:
        return f" (95 % interval{word} narrower than {10.0**-_MAX_DIGITS:.{_MAX_DIGITS}f}{unit})"
    return f" (95 % interval{word} {low} to {high}{unit})"


def is_alike(interval: Interval) -> bool:
    """Return whether the ends of an interval differ by rounding errors alone."""
    return interval.high - interval.low <= ROUNDING * max(abs(interval.low), abs(interval.high))


def has_interval(interval: Interval) -> bool:
    """Return whether an estimate has an interval with two ends, so that it is not exact."""
    return not math.isnan(interval.low) and not is_alike(interval)


def is_noticeable(gain: Interval) -> bool:
    """Return whether a gain is told as a number, and not as less than what one decimal shows."""
    return not math.isnan(gain.low) or percent(abs(gain.value)) != fixed(0, 1)


def longer_words(gain: Interval) -> str:
    """Return by how much longer, or less long, than a baseline something takes, given its gain: "9.1 % longer (95 %
    interval 8.6 to 9.6 %)". The caller tells why there is no interval."""
    if abs(gain.value) <= ROUNDING:
        is_same = gain.why == ALL_SAME or (not gain.why and not has_interval(gain))
        return "as long" if is_same else f"as long on average{interval_words(gain, 100, ' %')}"
    if is_zero(percent_of(gain)):
        if has_interval(gain):
            return f"as long on average{interval_words(gain, 100, ' %')}"
        alike = "" if gain.why else interval_words(gain, 100, " %")
        return f"less than 0.1 % {'less' if gain.value > 0 else 'longer'}{alike}"
    if gain.value > 0:
        return f"{percent_of(gain)} % less{'' if gain.why else interval_words(gain, 100, ' %')}"
    longer = Interval(value=-gain.value, low=-gain.high, high=-gain.low, why=gain.why)
    return f"{percent_of(longer)} % longer{'' if gain.why else interval_words(longer, 100, ' %')}"


def is_zero(number: str) -> bool:
    """Return whether a number in text is zero, with all of its decimals."""
    return not number.strip("-0.,")


def decimals(interval: Interval, scale: float, digits: int) -> int:
    """Return with how many decimals both an estimate and the ends of its interval are told: at least `digits`, and as
    many as tell the ends apart, if up to six do. With fewer of its own the estimate may seem to be outside."""
    low, high = interval.low * scale, interval.high * scale
    if is_alike(interval):
        return digits
    return next((more for more in range(digits, _MAX_DIGITS + 1) if fixed(low, more) != fixed(high, more)), digits)


def estimate(interval: Interval, scale: float, digits: int) -> str:
    """Return an estimate in text, with as many decimals as the ends of its interval, and at least `digits`."""
    return fixed(interval.value * scale, decimals(interval, scale, digits))


def ends(interval: Interval, scale: float, digits: int) -> tuple[str, str]:
    """Return both ends of an interval in text, with at least `digits` decimals and as many as tell them apart."""
    many = decimals(interval, scale, digits)
    return fixed(interval.low * scale, many), fixed(interval.high * scale, many)


def bracketed(interval: Interval, scale: float, digits: int) -> str:
    """Return both ends of an interval in brackets for a table or a line, or that there are none."""
    if math.isnan(interval.low):
        return "[the same]" if interval.why == ALL_SAME else "[-]"
    low, high = ends(interval, scale, digits)
    return "[all alike]" if low == high else f"[{low}, {high}]"


def fixed(number: float, digits: int) -> str:
    """Return a number with this many decimals, without a sign if it is rounded to zero."""
    text = f"{number:,.{digits}f}"
    return text.removeprefix("-") if is_zero(text) else text


def percent(share: float) -> str:
    """Return a share in percent, with one decimal."""
    return fixed(share * 100, 1)


def share_words(share: float, digits: int = 1) -> str:
    """Return a share in percent with so many decimals; "less than 0.1" where a share would be rounded to zero."""
    text = fixed(share * 100, digits)
    return f"less than {10.0**-digits:.{digits}f}" if is_zero(text) and share > ROUNDING else text


def percent_of(gain: Interval) -> str:
    """Return a gain in percent, with as many decimals as its interval has in words."""
    return estimate(gain, 100, 1)


def milliseconds_of(mean_s: Interval) -> str:
    """Return a mean time in ms as `milliseconds` does, or with as many decimals as its interval has in words."""
    least = _digits(mean_s.value * 1e3)
    return estimate(mean_s, 1e3, least) if decimals(mean_s, 1e3, least) > least else milliseconds(mean_s.value)


def _digits(ms: float) -> int:
    """Return the decimals of a time in ms with four digits, or with all those before the decimal point."""
    return max(0, 3 - (math.floor(math.log10(ms)) if ms > 0 else 0))


def milliseconds(seconds: float) -> str:
    """Return a time in ms with four digits, or with all those before the decimal point."""
    ms = seconds * 1e3
    return f"{ms:,.0f}" if ms >= 999.95 else f"{ms:.4g}"
