"""Student's t distribution: how wide an interval must be when few values tell how much they vary."""

import math


def quantile(probability: float, freedom: int) -> float:
    """The t below which this share of the distribution with that many degrees of freedom lies.

    Accurate to about twelve digits. Raises ValueError for a probability outside 0..1 or no degree of freedom.
    """
    if not 0 < probability < 1 or freedom < 1:
        raise ValueError(f"probability {probability} and freedom {freedom}: they must lie in 0..1 and be 1 or more")
    # The distribution is a function of the angle atan(t / sqrt(freedom)), which bisection finds.
    low, high = -math.pi / 2, math.pi / 2
    for _ in range(80):
        middle = (low + high) / 2
        if _below(middle, freedom) < probability:
            low = middle
        else:
            high = middle
    return math.sqrt(freedom) * math.tan((low + high) / 2)


def _below(angle: float, freedom: int) -> float:
    """The share below t = sqrt(freedom) tan(angle): Abramowitz and Stegun, "Handbook", 26.7.3 and 26.7.4."""
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = sine * cosine if odd else sine
    total = 0.0
    for place in range(2 + odd, freedom + 1, 2):
        total += term
        term *= cosine * cosine * (place - 1) / place
    within = (2 / math.pi) * (angle + total) if odd else total
    return (1 + within) / 2
