"""A permutation of messages under ECMP and under spraying, against the optimum: flow completion times by the fluid.

Run it as `python scenarios/permutation.py --hosts 1024`. Every host sends one message and receives one, all at once,
over a leaf-spine fabric in the physical grain: what is shared are the ports of cables. Three routings meet the same
random permutations:

    ecmp     a hash of source, destination and seed selects the spine of each site and the path over the WAN
    spray    a message is cut into equal pieces, a channel each: one through every spine and over every path
    optimum  the least time in which any cut of the messages over any spines and paths delivers the last of them

Times are those of the fluid model (`analysis.model.fluid`) without propagation delay, as multiples of the optimum. With
`--engine both` the same draws are measured beside, on real TCP in the emulated testbed.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if __name__ == "__main__":  # modules are found from the top of the project, wherever the command is started
    ROOT = Path(__file__).resolve().parent.parent
    sys.path[:] = [str(ROOT), *(path for path in sys.path if Path(path or ".").resolve() != ROOT / "scenarios")]

from scenarios.experiment.options import DONE
from scenarios.tools import study

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from scenarios.tools.permutation_testbed import Measure
    from topologies.fabric.fabric import Fabric
    from topologies.fabric.ports import Ports

    Floats = npt.NDArray[np.float64]
    Ints = npt.NDArray[np.int64]

ECMP, SPRAY = "ecmp", "spray"
_MOST_HOSTS, _MOST_SWITCHES, _MOST_DRAWS, _MOST_PIECES = 4096, 128, 10_000, 1 << 19


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """The fabric, its rates and the draws: `sites` of `hosts` in all, with so many switches of a tier in each site.

    Rates in bit/s are those of the hosts' cables, of all other cables within a site, and of WAN links; `size` is that
    of a message in bytes. Border routers count where there are several sites, each of which joins all of another.
    """

    hosts: int
    sites: int
    leaves: int
    spines: int
    border_routers: int
    size: int
    rate_bps: int
    fabric_rate_bps: int
    wan_rate_bps: int
    draws: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class Line:
    """The completion times of one routing over the optimum: of all messages of all draws, and the mean over the draws
    of the last message's.

    Of the emulation also the largest |measured / predicted - 1| of a message, and of a draw's last message.
    """

    routing: str
    engine: str
    median: float
    p99: float
    max: float
    completion: float
    worst_message: float | None = None
    worst_completion: float | None = None


class Ways(NamedTuple):
    """Pieces of messages, [W] each: which message, by its source, how large a share of it, over which WAN path (-1
    within a site), and through which spines, [W, 2], those of the source's site and of the destination's."""

    message: "Ints"
    share: "Floats"
    path: "Ints"
    spine: "Ints"


# --- the network ------------------------------------------------------------------------------------------------------


def network(asked: Experiment) -> "Fabric":
    """The fabric; raises FabricError for what cannot be built.

    That of one site has neither border routers nor logical links, which would be one for every pair of hosts.
    """
    from topologies.errors import FabricError, Mistake
    from topologies.fabric.addressing import wire
    from topologies.fabric.fabric import Fabric, FabricSpec, build_fabric
    from topologies.fabric.wan import WanGraph

    each, rest = divmod(asked.hosts, asked.sites)
    if rest:
        raise FabricError(
            [Mistake("--hosts", f"{asked.hosts} over {asked.sites} sites; allowed: a multiple of {asked.sites}")]
        )
    spec = FabricSpec(
        gpus_per_site=(each,) * asked.sites,
        leaves=asked.leaves,
        spines=asked.spines,
        border_routers=asked.border_routers if asked.sites > 1 else 0,
    )
    if asked.sites > 1:
        return build_fabric(spec)
    wan = WanGraph(((),), (), ())
    gpus, switches, cables = wire(gpus_per_site=(each,), leaves=(asked.leaves,), spines=(asked.spines,), wan=wan)
    return Fabric(
        spec=spec,
        wan=wan,
        gpus=gpus,
        switches=switches,
        cables=cables,
        border_routers=(),
        br_sites=(),
        links=(),
        paths=(),
        paths_between={},
        site_cycle=(0,),
    )


def capacities(asked: Experiment, ports: "Ports") -> "Floats":
    """What each port carries, [ports] bit/s."""
    import numpy as np

    rates = {"gpu_leaf": asked.rate_bps, "leaf_gpu": asked.rate_bps, "wan": asked.wan_rate_bps}
    return np.array([rates.get(port.kind, asked.fabric_rate_bps) for port in ports.all], np.float64)


# --- routings ---------------------------------------------------------------------------------------------------------


def permutation(hosts: int, rng: "np.random.Generator") -> "Ints":
    """To which host each one sends, [hosts]: a permutation in which none sends to itself, all equally likely."""
    import numpy as np

    while True:  # one in e permutations has no fixed point
        found = rng.permutation(hosts)
        if (found != np.arange(hosts)).all():
            return found


def _paths(fabric: "Fabric", src: "Ints", dst: "Ints") -> "tuple[Ints, Ints]":
    """The candidate paths of each message, [n, most], -1 beyond their number and within a site; and their number, which
    is 1 within a site."""
    import numpy as np

    most = max((len(paths) for paths in fabric.paths_between.values()), default=1)
    sites = len(fabric.gpus_per_site)
    table, number = np.full((sites, sites, most), -1), np.ones((sites, sites), np.int64)
    for pair, paths in fabric.paths_between.items():
        table[pair][: len(paths)], number[pair] = [path.index for path in paths], len(paths)
    ends = fabric.gpu_sites[src], fabric.gpu_sites[dst]
    return table[ends], number[ends]


def ecmp(fabric: "Fabric", spines: int, src: "Ints", dst: "Ints", *, seed: int) -> Ways:
    """Every message over one way, chosen by three hashes: at its leaf, at the spine and at the far border router."""
    import numpy as np

    from controller.routing.multipath import hashed

    paths, number = _paths(fabric, src, dst)
    up, over, down = (hashed(seed, src, dst, hop) for hop in range(3))
    path = paths[np.arange(len(src)), (over % number.astype(np.uint64)).astype(np.int64)]
    spine = np.stack([up, np.where(path >= 0, down, up)], axis=-1) % np.uint64(spines)
    return Ways(np.arange(len(src)), np.ones(len(src)), path, spine.astype(np.int64))


def spray(fabric: "Fabric", spines: int, src: "Ints", dst: "Ints") -> Ways:
    """Every message in equal pieces: one through each spine, the same in both sites, over each path.

    Raises ValueError for more pieces than allowed.
    """
    import numpy as np

    paths, number = _paths(fabric, src, dst)
    pieces = spines * number
    if pieces.sum() > _MOST_PIECES:
        raise ValueError(f"{pieces.sum():,} pieces of messages; allowed: {_MOST_PIECES:,}")
    message = np.repeat(np.arange(len(src)), pieces)
    place = np.arange(len(message)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    spine = place % spines
    return Ways(message, 1 / pieces[message], paths[message, place // spines], np.stack([spine, spine], axis=-1))


# --- times ------------------------------------------------------------------------------------------------------------


def times_s(ports: "Ports", capacity_bps: "Floats", dst: "Ints", ways: Ways, size: int) -> "Floats":
    """When each message of `size` bytes has arrived whole, [n] s; message i is from host i to host `dst[i]`."""
    import numpy as np

    from analysis.model import fluid
    from hosts.collectives.schedule import Transfer

    links = ports.of(ways.message, dst[ways.message], ways.path, ways.spine)
    pieces = [Transfer(flow=flow, size=share) for flow, share in enumerate(ways.share.tolist())]
    found = fluid.times(pieces, links[None], capacity_bps[None], np.zeros((1, len(pieces))), slot_bytes=size)
    whole = np.zeros(len(dst))
    np.maximum.at(whole, ways.message, found.arrives_s[:, 0])
    return whole


def optimum_s(ports: "Ports", capacity_bps: "Floats", dst: "Ints", sprayed: Ways, size: int) -> float:
    """The least time in which any cut of the messages over any ways delivers the last of them, s.

    It is exact: the greatest of bits / capacity over all ports where the messages are sprayed. No less is possible, as
    what is sent over the ports of a tier, from a leaf to the spines and so on, crosses them on every way, and all of
    them carry the same; no more is needed, as rates in proportion to the pieces keep within all capacities.
    """
    import numpy as np

    links = ports.of(sprayed.message, dst[sprayed.message], sprayed.path, sprayed.spine)
    rows, hops = np.nonzero(links >= 0)
    bits = np.bincount(links[rows, hops], 8 * size * sprayed.share[rows], minlength=len(capacity_bps))
    return float((bits / capacity_bps).max())


def _drawn(asked: Experiment, draw: int) -> "tuple[Ints, int]":
    """To which host each one sends in a draw, and the seed of its hash."""
    import numpy as np

    rng = np.random.default_rng((asked.seed, draw))
    dst = permutation(asked.hosts, rng)
    return dst, int(rng.integers(1 << 63))


def prepared(asked: Experiment) -> "AbstractContextManager[Measure]":
    """As `scenarios.tools.permutation_testbed.prepared`, of every draw by ECMP and then by spray.

    Raises what that does, and ValueError for what the testbed has not.
    """
    from scenarios.tools import permutation_testbed as emulated
    from topologies.units import format_rate

    if asked.fabric_rate_bps != asked.rate_bps:
        raise ValueError(
            f"--fabric-rate: {format_rate(asked.fabric_rate_bps)}: allowed in the emulation is the rate of the hosts' "
            f"cables, {format_rate(asked.rate_bps)}"
        )
    bed = emulated.Bed(
        hosts=(asked.hosts // asked.sites,) * asked.sites,
        leaves=asked.leaves,
        spines=asked.spines,
        border_routers=asked.border_routers,
        rate_bps=asked.rate_bps,
        wan_rate_bps=asked.wan_rate_bps,
        size=asked.size,
    )
    draws = [_drawn(asked, draw) for draw in range(asked.draws)]
    return emulated.prepared(
        bed,
        [emulated.Draw(dst=dst, routing=routing, hash_seed=seed) for routing in (ECMP, SPRAY) for dst, seed in draws],
    )


def run(asked: Experiment, drawn: Callable[[int], None] = lambda _: None) -> "tuple[dict[str, Floats], Floats]":
    """The completion times of each routing over the optimum, [draws, hosts] each, and the optimum, [draws] s.

    `drawn` is called with the number of draws that are done. Raises FabricError for a fabric that cannot be built, and
    ValueError for more pieces than allowed.
    """
    import numpy as np

    from topologies.fabric.ports import Ports

    fabric = network(asked)
    ports = Ports(fabric)
    capacity_bps, src = capacities(asked, ports), np.arange(asked.hosts)
    found = {routing: np.empty((asked.draws, asked.hosts)) for routing in (ECMP, SPRAY)}
    optimum = np.empty(asked.draws)
    for draw in range(asked.draws):
        dst, hash_seed = _drawn(asked, draw)
        sprayed = spray(fabric, asked.spines, src, dst)
        ways = {ECMP: ecmp(fabric, asked.spines, src, dst, seed=hash_seed), SPRAY: sprayed}
        optimum[draw] = optimum_s(ports, capacity_bps, dst, sprayed, asked.size)
        for routing, one in ways.items():
            found[routing][draw] = times_s(ports, capacity_bps, dst, one, asked.size) / optimum[draw]
        drawn(draw + 1)
    return found, optimum


# --- the command ------------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return the exit status."""
    parsed = _parser().parse_args(arguments)
    return study.status_of("permutation.py", lambda: _study(parsed), parsed.figure)


def _study(parsed: argparse.Namespace) -> int:
    asked, measured = _experiment(parsed), dict[str, Any]()
    with study.Progress("permutation.py") as progress, ExitStack() as stack:
        measure = stack.enter_context(prepared(asked)) if parsed.engine == "both" else None
        found, optimum = run(asked, lambda done: progress.say(f"{done} of {asked.draws} draws"))
        if measure is not None:
            told = f"of {2 * asked.draws} points measured"
            times_s = measure(lambda done: progress.say(f"{done} {told}"), parsed.jobs)
            measured = dict(zip((ECMP, SPRAY), times_s.reshape(2, *found[ECMP].shape) / optimum[:, None], strict=True))
    lines = [_line(routing, "model", ratios) for routing, ratios in found.items()]
    lines += [_line(routing, "emulation", ratios, found[routing]) for routing, ratios in measured.items()]
    answer = asdict(asked) | {"grain": "physical", "optimum_s": float(optimum.mean())}
    answer["routings"] = [asdict(line) for line in lines]
    text = json.dumps(answer, indent=1)
    print(text if parsed.json else _table(asked, float(optimum.mean()), lines))
    if parsed.figure is not None:
        from analysis.figures.flow_times import picture

        drawn_picture = picture(found, measured, title=_title(asked))
        drawn_picture.write_to(parsed.figure, command="permutation.py", answer=text)
    return DONE


def _line(routing: str, engine: str, ratios: "Floats", predicted: "Floats | None" = None) -> Line:
    """The line of a routing with these times over the optimum, [draws, hosts], beside the predicted ones."""
    import numpy as np

    line = Line(
        routing=routing,
        engine=engine,
        median=float(np.median(ratios)),
        p99=float(np.quantile(ratios, 0.99)),
        max=float(ratios.max()),
        completion=float(ratios.max(axis=1).mean()),
    )
    if predicted is None:
        return line
    return replace(
        line,
        worst_message=float(np.abs(ratios / predicted - 1).max()),
        worst_completion=float(np.abs(ratios.max(axis=1) / predicted.max(axis=1) - 1).max()),
    )


def _title(asked: Experiment) -> str:
    from topologies.units import format_size

    sites = "1 site" if asked.sites == 1 else f"{asked.sites} sites"
    return (
        f"permutation of {asked.hosts:,} hosts, {sites}, {format_size(asked.size)}, {asked.draws} draws, physical grain"
    )


def _table(asked: Experiment, optimum_s: float, lines: Sequence[Line]) -> str:
    from scenarios.table import aligned

    heads = ["routing", "engine", "median", "99 %", "max", "last, mean"]
    rows = [
        [line.routing, line.engine, *(f"{x:.3f}" for x in (line.median, line.p99, line.max, line.completion))]
        for line in lines
    ]
    if any(line.worst_message is not None for line in lines):
        heads += ["worst off: message", "last"]
        for row, line in zip(rows, lines, strict=True):
            worst = line.worst_message, line.worst_completion
            row += ["" if off is None else f"{off:.2%}" for off in worst]
    per_site = f"in each site leaves: {asked.leaves}, spines: {asked.spines}"
    per_site += f", border routers: {asked.border_routers}" if asked.sites > 1 else ""
    told = f"flow completion times over the optimum ({optimum_s * 1e6:,.2f} us on average)"
    return "\n".join([_title(asked), per_site, told, *aligned((heads, *rows))])


def _experiment(parsed: argparse.Namespace) -> Experiment:
    """What is asked for; raises ValueError."""
    from topologies.units import parse_rate_bps, parse_size_bytes

    study.check(parsed, 2, _MOST_HOSTS, "hosts")
    study.check(parsed, 1, 8, "sites")
    study.check(parsed, 1, _MOST_DRAWS, "draws")
    study.check(parsed, 0, 2**63 - 1, "seed")
    study.check(parsed, 1, 64, "jobs")
    study.check(parsed, 1, _MOST_SWITCHES, "leaves", "spines", "border_routers")
    each = max(1, parsed.hosts // parsed.sites)
    leaves = _power_of_two_near_root(each) if parsed.leaves is None else parsed.leaves
    spines = -(-each // leaves) if parsed.spines is None else parsed.spines
    if spines > _MOST_SWITCHES:  # so many hosts on few leaves
        raise ValueError(f"--spines: {spines}; allowed: 1 to {_MOST_SWITCHES}")
    rate_bps = parse_rate_bps(parsed.rate)
    return Experiment(
        hosts=parsed.hosts,
        sites=parsed.sites,
        leaves=leaves,
        spines=spines,
        border_routers=parsed.border_routers,
        size=parse_size_bytes(parsed.size),
        rate_bps=rate_bps,
        fabric_rate_bps=rate_bps if parsed.fabric_rate is None else parse_rate_bps(parsed.fabric_rate),
        wan_rate_bps=rate_bps if parsed.wan_rate is None else parse_rate_bps(parsed.wan_rate),
        draws=parsed.draws,
        seed=parsed.seed,
    )


def _power_of_two_near_root(hosts: int) -> int:
    """So many leaves that each has about as many hosts as there are leaves."""
    return int(1 << max(0, (hosts.bit_length() - 1) // 2))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="permutation.py",
        description="A permutation of messages under ECMP and spraying, against the optimum: flow completion times.",
    )
    parser.add_argument("--hosts", type=int, default=1024, help="in all, each sends one message (default 1024)")
    parser.add_argument("--sites", type=int, default=1, help="over which they are spread evenly (default 1)")
    parser.add_argument("--leaves", type=int, help="of a site (default about the root of its hosts)")
    parser.add_argument("--spines", type=int, help="of a site (default as many as a leaf has hosts)")
    parser.add_argument("--border-routers", type=int, default=2, help="of each of several sites (default 2)")
    parser.add_argument("--size", default="8 MB", help="of a message (default 8 MB)")
    parser.add_argument("--rate", default="100 Gbit/s", help="of the hosts' cables (default 100 Gbit/s)")
    parser.add_argument("--fabric-rate", metavar="RATE", help="of other cables in a site (default as --rate)")
    parser.add_argument("--wan-rate", metavar="RATE", help="of a WAN link (default as --rate)")
    parser.add_argument("--draws", type=int, default=20, help="permutations and hashes (default 20)")
    parser.add_argument("--seed", type=int, default=1, help="of all draws (default 1)")
    parser.add_argument("--engine", choices=("model", "both"), default="model", help="(default model)")
    parser.add_argument("--jobs", type=int, default=1, help="VMs at a time (default 1)")
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    parser.add_argument("--figure", type=Path, metavar="PATH", help="draw into PATH.svg, .png, .csv, and .json beside")
    return parser


if __name__ == "__main__":
    from scenarios.signals import supervised

    sys.exit(supervised(main))
