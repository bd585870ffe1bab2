"""How long a paced TCP connection may be behind its calendar when a link on its path fails. Pure.

The packets that reach the dead link are lost: those that are on the way to it, and those that follow until the switches
take the substitute path. The last of them may be the connection's last packet, so that no later packet shows the loss.
Then TCP waits for its retransmission timer:

- The timer runs for a smoothed round trip and four times its variation, at least `rto_min` (RFC 6298, section 2, with
  Linux's lower bound). After its first sample, the handshake, that is a round trip and twice a round trip.
- Each acknowledgement of new data restarts it (section 5.3): it may run out a round trip and a timeout after the loss.
- It doubles each time (section 5.5). While packets are still lost, the next retransmission may come as late as at
  twice the time that has passed.
- TCP resumes with a window of one packet. A round trip later, each acknowledgement lets it send one packet more than it
  acknowledges: in slow start (RFC 5681) at least that, in proportional rate reduction (RFC 6937) exactly that. Delayed
  acknowledgements are for two packets, those of a segment of several packets for all of them.

If acknowledgements arrive sooner, for later packets or for a probe of the tail (RFC 8985), TCP resumes sooner.
"""

from collections import Counter

REACTION_S = 10e-3
"""The longest time from a link's failure until switches use other paths, for a controller without delay. Open vSwitch
revalidates its cached flows in periods of 5 ms."""

_TICKS_PER_S = 1000  # of the VM's kernel (CONFIG_HZ)
_MORE_ROUNDS = 1  # a round trip in which TCP only probes (the tail loss probe, or F-RTO of RFC 5682)
_DELAYED = 2  # packets for which a receiver sends one acknowledgement
_MAX_ROUNDS = 10_000


def timeout_s(round_trip_s: float, *, rto_min_s: float) -> float:
    """Return TCP's longest retransmission timeout on a path whose round trip is about constant, in s."""
    timer_s = round_trip_s + max(rto_min_s, 2 * round_trip_s)
    return timer_s + _grain_s(timer_s)


def _grain_s(timer_s: float) -> float:
    """Return how much later than at its time the kernel's timer may end, in s: at a slot of the timer wheel, which has
    8 times as many ticks for timers that are 8 times as long (kernel/time/timer.c)."""
    slot = 1
    while timer_s * _TICKS_PER_S >= 63 * slot:
        slot *= 8
    return (slot + 1) / _TICKS_PER_S


def rounds(packets: int, *, per_segment: int = 1) -> int:
    """Return in how many round trips TCP sends so many packets again, from a window of one packet on.

    An acknowledgement lets it send as many packets as it acknowledges and one more. A segment has up to `per_segment`
    packets.
    """
    most = max(_DELAYED, per_segment)
    in_flight, sent, count = Counter({1: 1}), 1, 1
    while sent < packets and count < _MAX_ROUNDS:
        segments: Counter[int] = Counter()
        for size, number in in_flight.items():
            whole, rest = divmod(size + 1, most)
            segments[most] += number * whole
            segments[rest] += number * (rest > 0)
        in_flight = segments
        sent += sum(size * number for size, number in segments.items())
        count += 1
    return count


def behind_s(
    *, before_s: float, after_s: float, outage_s: float, rto_min_s: float, packets: int, per_segment: int = 1
) -> float:
    """Return how long after its time the last lost packet may be sent again, in s.

    `before_s` and `after_s` are the longest round trips before and after the failure, `outage_s` is the time from the
    failure until the substitute path is in use, and `packets` how many packets of a connection may be lost.
    """
    first_s = before_s + timeout_s(max(before_s, after_s), rto_min_s=rto_min_s) + 2 * outage_s
    again_s = outage_s  # what is sent again takes the place of later packets
    return first_s + (rounds(packets, per_segment=per_segment) + _MORE_ROUNDS) * after_s + again_s


def stalls(*, before_s: float, after_s: float, outage_s: float, rto_min_s: float) -> bool:
    """Return whether TCP's timer may run out before acknowledgements on a longer path show that packets arrive.

    Then TCP also resumes with a window of one packet in the middle of a transfer.
    """
    return after_s - before_s + outage_s + _grain_s(rto_min_s) >= rto_min_s
