"""The same AllGather in htsim, a packet simulator for datacenters (github.com/Broadcom/csg-htsim): its wall time.

htsim's RoCE has no TCP stack, no switch's software, no controller and no data, so its time is what a mere simulation of
the packets takes. It runs as a process of its own, from the program `htsim_roce` that the user has built.
"""

import subprocess
import tempfile
import time
from pathlib import Path

SITES, LEAVES, SPINES = 2, 2, 2
"""Sites, and leaves and spines of each: the paper's fabric. A single core switch is in place of the WAN."""
_FABRIC_GBPS, _WAN_GBPS, _NS, _PACKET_BYTES = 100, 200, 1000, 9000
_BUFFER_PACKETS, _SLOW_PACKETS, _STOP_PACKETS = 1000, 12, 15  # a port's buffer, and when it is paused and goes on
_END_US = 10**8


def fabric(gpus: int) -> str:
    """Return htsim's description of a fabric of three tiers: leaves, spines and a core between the sites."""
    hosts, ports = gpus // (SITES * LEAVES), f"Downlink_Latency_ns {_NS}\nSwitch_Latency_ns 0\n"
    return (
        f"Nodes {gpus}\nTiers 3\nPodsize {gpus // SITES}\n"
        f"\nTier 0\nOversubscribed {max(1, hosts // SPINES)}\n"
        f"Downlink_speed_Gbps {_FABRIC_GBPS}\nRadix_Down {hosts}\nRadix_Up {SPINES}\n{ports}"
        f"\nTier 1\nDownlink_speed_Gbps {_FABRIC_GBPS}\nRadix_Down {LEAVES}\nRadix_Up 1\n{ports}"
        f"\nTier 2\nDownlink_speed_Gbps {_WAN_GBPS}\nRadix_Down {SITES}\n{ports}"
    )


def ring(gpus: int, chunk_bytes: int) -> str:
    """Return htsim's list of the messages of an AllGather over a ring in the order of ranks: `gpus` - 1 steps, in each
    of which every rank sends on what it has received in the step before."""
    count, started = gpus * (gpus - 1), gpus * (gpus - 2)
    lines = [f"Nodes {gpus}", f"Connections {count}", f"Triggers {started}"]
    for step in range(gpus - 1):
        for src in range(gpus):
            dst, number = (src + 1) % gpus, step * gpus + src + 1
            # Of a step, message `number` has sent what the rank `dst` sends on in the next.
            after = f" send_done_trigger {step * gpus + dst + 1}" if step < gpus - 2 else ""
            begins = f"trigger {number - gpus}" if step else "start 0"
            lines.append(f"{src}->{dst} id {number} {begins} size {chunk_bytes}{after}")
    lines += [f"trigger id {number + 1} oneshot" for number in range(started)]
    return "\n".join(lines) + "\n"


def seconds(program: Path, gpus: int, chunk_bytes: int) -> float:
    """Return the wall time in which `program` simulates an AllGather of `gpus` ranks, s. OSError if it cannot be
    started, RuntimeError if it fails or some messages do not end."""
    with tempfile.TemporaryDirectory(prefix="longhaul-htsim-") as folder:
        (Path(folder) / "fabric.topo").write_text(fabric(gpus))
        (Path(folder) / "ring.cm").write_text(ring(gpus, chunk_bytes))
        options = {
            "nodes": gpus,
            "topo": "fabric.topo",
            "tm": "ring.cm",
            "strat": "ecmp_host",
            "paths": 64,
            "queue_type": "lossless_input",
            "q": _BUFFER_PACKETS,
            "mtu": _PACKET_BYTES,
            "linkspeed": _FABRIC_GBPS * 1000,
            "end": _END_US,
        }
        words = [word for name, value in options.items() for word in (f"-{name}", str(value))]
        words += ["-pfc_thresholds", str(_SLOW_PACKETS), str(_STOP_PACKETS)]
        start = time.monotonic()
        ended = subprocess.run([program.resolve(), *words], cwd=folder, capture_output=True, text=True, check=False)
        took_s = time.monotonic() - start
    done, count = sum(" finished at " in line for line in ended.stdout.splitlines()), gpus * (gpus - 1)
    if ended.returncode or done != count:
        last = (ended.stderr or ended.stdout).strip().rpartition("\n")[2]
        raise RuntimeError(f"{program} ended with status {ended.returncode} after {done} of {count} messages: {last}")
    return took_s
