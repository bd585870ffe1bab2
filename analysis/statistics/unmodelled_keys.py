"""Keys that the timing model does not include, and what it has in their place. Notes before a run, sentences at its
end and the reference of keys ask here."""

from collections.abc import Mapping

INSTEAD: Mapping[str, str] = {
    "fabric.buffer": "nothing is lost in a queue",
    "fabric.wan_loss": "WAN links lose nothing",
    "transport.line_rate": "flows start at line rate",
    "transport.congestion_control": "flows have the rates of their links at once",
    "transport.slow_start_after_idle": "flows go on at line rate after a pause",
    "transport.rto_min": "nothing is sent again",
    "transport.queue": "flows share links max-min fairly",
    "transport.ecn_threshold": "nothing is marked",
    "transport.protocol": "a link's rate is that of the payload, whatever carries it",
    "class.congestion_control": "flows have the rates of their links at once",
}
"""What holds in the timing model whatever the value of a key is, which it does not include."""
