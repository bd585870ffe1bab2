"""Flow completion times of a permutation of messages under ECMP and under spraying, compared with the optimum.

Run it as `python scenarios/permutation.py --hosts 1024`. Every host sends one message and receives one, all at the same
time, over a leaf-spine fabric in the physical grain, in which flows share the ports of cables. The same random
permutations are routed in three ways:

    ecmp     a hash of source, destination and seed selects the spine of each site and the path over the WAN
    spray    a message is cut into equal pieces, a channel each: one through every spine and over every path
    optimum  the least time in which any cut of the messages over any spines and paths delivers the last of them

Times are those of the fluid model (`analysis.model.fluid`) without propagation delay, as multiples of the optimum. With
`--engine both` the same draws are also measured, with real TCP in the emulated testbed.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from scenarios.studies.harness import Answer, Column, Show, Study, Table, add_output, check_range, quantity
from topologies.command_line import CommandParser

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from analysis.figures.output import Picture
    from scenarios.studies.permutation_testbed import Measure
    from topologies.fabric.fabric import Fabric
    from topologies.fabric.ports import Ports

    Floats = npt.NDArray[np.float64]
    Ints = npt.NDArray[np.int64]

COMMAND = "permutation.py"
ECMP, SPRAY = "ecmp", "spray"
_MAX_HOSTS, _MAX_SWITCHES, _MAX_DRAWS, _MAX_PIECES = 4096, 128, 10_000, 1 << 19


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """The fabric, its rates and the number of draws.

    `hosts` counts all sites together; `leaves`, `spines` and `border_routers` count each site. The rates (bit/s) are
    those of the hosts' cables, of all other cables within a site, and of WAN links; `size` is the size of a message in
    bytes. Border routers exist only if there are several sites; each is linked to all border routers of other sites.
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
    """The completion times of a routing / the optimum.

    `median`, `p99` and `max` are over all messages of all draws; `completion` is the mean over draws of the last
    message's time. With the emulation, `worst_message` and `worst_completion` are the largest |measured / predicted -
    1| of a message, and of a draw's last message.
    """

    routing: str
    engine: str
    median: float
    p99: float
    max: float
    completion: float
    worst_message: float | None = None
    worst_completion: float | None = None


class Routes(NamedTuple):
    """The routes of message pieces, [P] each.

    `message` is the message, by its source; `share` the piece's share of it; `path` its WAN path (-1 within a site);
    `spine`, [P, 2], its spines in the sites of the source and of the destination.
    """

    message: "Ints"
    share: "Floats"
    path: "Ints"
    spine: "Ints"


# --- the network ------------------------------------------------------------------------------------------------------


def network(experiment: Experiment) -> "Fabric":
    """Build the fabric; raises FabricError if it cannot be built.

    A single site has no border routers. It has no logical links either: there would be one for every pair of hosts.
    """
    from topologies.errors import FabricError, Mistake
    from topologies.fabric.addressing import wire
    from topologies.fabric.fabric import Fabric, FabricSpec, build_fabric
    from topologies.fabric.wan import WanGraph

    each, rest = divmod(experiment.hosts, experiment.sites)
    if rest:
        raise FabricError(
            [
                Mistake(
                    "--hosts",
                    f"{experiment.hosts} over {experiment.sites} sites; allowed: a multiple of {experiment.sites}",
                )
            ]
        )
    spec = FabricSpec(
        gpus_per_site=(each,) * experiment.sites,
        leaves=experiment.leaves,
        spines=experiment.spines,
        border_routers=experiment.border_routers if experiment.sites > 1 else 0,
    )
    if experiment.sites > 1:
        return build_fabric(spec)
    wan = WanGraph(((),), (), ())
    gpus, switches, cables = wire(
        gpus_per_site=(each,), leaves=(experiment.leaves,), spines=(experiment.spines,), wan=wan
    )
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


def capacities(experiment: Experiment, ports: "Ports") -> "Floats":
    """Return the rate of each port, [ports] bit/s."""
    import numpy as np

    rates = {"gpu_leaf": experiment.rate_bps, "leaf_gpu": experiment.rate_bps, "wan": experiment.wan_rate_bps}
    return np.array([rates.get(port.kind, experiment.fabric_rate_bps) for port in ports.all], np.float64)


# --- routings ---------------------------------------------------------------------------------------------------------


def permutation(hosts: int, rng: "np.random.Generator") -> "Ints":
    """Draw the destination of each host, [hosts]: a uniformly random permutation in which no host sends to itself."""
    import numpy as np

    while True:  # one in e permutations has no fixed point
        dst = rng.permutation(hosts)
        if (dst != np.arange(hosts)).all():
            return dst


def _paths(fabric: "Fabric", src: "Ints", dst: "Ints") -> "tuple[Ints, Ints]":
    """Return the candidate WAN paths of each message, [n, most], padded with -1, and their number, [n].

    Within a site the only path is -1, so the number is 1.
    """
    import numpy as np

    most = max((len(paths) for paths in fabric.paths_between.values()), default=1)
    sites = len(fabric.gpus_per_site)
    table, number = np.full((sites, sites, most), -1), np.ones((sites, sites), np.int64)
    for pair, paths in fabric.paths_between.items():
        table[pair][: len(paths)], number[pair] = [path.index for path in paths], len(paths)
    ends = fabric.gpu_sites[src], fabric.gpu_sites[dst]
    return table[ends], number[ends]


def ecmp(fabric: "Fabric", spines: int, src: "Ints", dst: "Ints", *, seed: int) -> Routes:
    """Route every message whole, by three hashes: at its leaf, at the spine and at the destination's border router."""
    import numpy as np

    from controller.routing.multipath import hashed

    paths, number = _paths(fabric, src, dst)
    up, over, down = (hashed(seed, src, dst, hop) for hop in range(3))
    path = paths[np.arange(len(src)), (over % number.astype(np.uint64)).astype(np.int64)]
    spine = np.stack([up, np.where(path >= 0, down, up)], axis=-1) % np.uint64(spines)
    return Routes(np.arange(len(src)), np.ones(len(src)), path, spine.astype(np.int64))


def spray(fabric: "Fabric", spines: int, src: "Ints", dst: "Ints") -> Routes:
    """Route every message in equal pieces: one for each spine (of the same index in both sites) and path.

    Raises ValueError for more pieces than allowed.
    """
    import numpy as np

    paths, number = _paths(fabric, src, dst)
    pieces = spines * number
    if pieces.sum() > _MAX_PIECES:
        raise ValueError(f"{pieces.sum():,} pieces of messages; allowed: {_MAX_PIECES:,}")
    message = np.repeat(np.arange(len(src)), pieces)
    piece = np.arange(len(message)) - np.repeat(np.cumsum(pieces) - pieces, pieces)  # its index in the message
    spine = piece % spines
    return Routes(message, 1 / pieces[message], paths[message, piece // spines], np.stack([spine, spine], axis=-1))


# --- times ------------------------------------------------------------------------------------------------------------


def times_s(ports: "Ports", capacity_bps: "Floats", dst: "Ints", routes: Routes, size: int) -> "Floats":
    """Predict when each message of `size` bytes has arrived whole, [n] s; message i is from host i to host `dst[i]`."""
    import numpy as np

    from analysis.model import fluid
    from hosts.collectives.schedule import Transfer

    links = ports.of(routes.message, dst[routes.message], routes.path, routes.spine)
    pieces = [Transfer(flow=flow, size=share) for flow, share in enumerate(routes.share.tolist())]
    times = fluid.times(pieces, links[None], capacity_bps[None], np.zeros((1, len(pieces))), slot_bytes=size)
    arrivals_s = np.zeros(len(dst))
    np.maximum.at(arrivals_s, routes.message, times.arrives_s[:, 0])
    return arrivals_s


def optimum_s(ports: "Ports", capacity_bps: "Floats", dst: "Ints", sprayed: Routes, size: int) -> float:
    """Return the least time in which any cut of the messages over any routes delivers the last of them, s.

    It is exact: the largest bits / capacity over all ports when messages are sprayed. Every route crosses the same
    tiers of ports (such as those from a leaf to the spines), and spraying loads all ports of a tier equally, so no cut
    is faster. That time is also enough, because rates proportional to the pieces then exceed no capacity.
    """
    import numpy as np

    links = ports.of(sprayed.message, dst[sprayed.message], sprayed.path, sprayed.spine)
    rows, hops = np.nonzero(links >= 0)
    bits = np.bincount(links[rows, hops], 8 * size * sprayed.share[rows], minlength=len(capacity_bps))
    return float((bits / capacity_bps).max())


def _drawn(experiment: Experiment, draw: int) -> "tuple[Ints, int]":
    """Return the destination of each host in a draw, [hosts], and the seed of its hash."""
    import numpy as np

    rng = np.random.default_rng((experiment.seed, draw))
    dst = permutation(experiment.hosts, rng)
    return dst, int(rng.integers(1 << 63))


def prepared(experiment: Experiment) -> "AbstractContextManager[Measure]":
    """Prepare to measure every draw by ECMP, then every draw by spray (`permutation_testbed.prepare_testbed`).

    Raises the errors of that function, and ValueError for rates that the testbed does not support.
    """
    from scenarios.studies import permutation_testbed as emulated
    from topologies.units import format_rate

    if experiment.fabric_rate_bps != experiment.rate_bps:
        given, allowed = format_rate(experiment.fabric_rate_bps), format_rate(experiment.rate_bps)
        raise ValueError(f"--fabric-rate: {given}; allowed in the emulation: the rate of the hosts' cables, {allowed}")
    setup = emulated.Setup(
        hosts=(experiment.hosts // experiment.sites,) * experiment.sites,
        leaves=experiment.leaves,
        spines=experiment.spines,
        border_routers=experiment.border_routers,
        rate_bps=experiment.rate_bps,
        wan_rate_bps=experiment.wan_rate_bps,
        size=experiment.size,
    )
    draws = [_drawn(experiment, draw) for draw in range(experiment.draws)]
    return emulated.prepare_testbed(
        setup,
        [emulated.Draw(dst=dst, routing=routing, hash_seed=seed) for routing in (ECMP, SPRAY) for dst, seed in draws],
    )


def run(experiment: Experiment, progress: Callable[[int], None] = lambda _: None) -> "tuple[dict[str, Floats], Floats]":
    """Predict the completion times of each routing / the optimum, [draws, hosts] each, and the optimum, [draws] s.

    `progress` is called with the number of draws that are done. Raises FabricError for a fabric that cannot be built,
    and ValueError for more pieces than allowed.
    """
    import numpy as np

    from topologies.fabric.ports import Ports

    fabric = network(experiment)
    ports = Ports(fabric)
    capacity_bps, src = capacities(experiment, ports), np.arange(experiment.hosts)
    ratios = {routing: np.empty((experiment.draws, experiment.hosts)) for routing in (ECMP, SPRAY)}
    optimum = np.empty(experiment.draws)
    for draw in range(experiment.draws):
        dst, hash_seed = _drawn(experiment, draw)
        sprayed = spray(fabric, experiment.spines, src, dst)
        routes = {ECMP: ecmp(fabric, experiment.spines, src, dst, seed=hash_seed), SPRAY: sprayed}
        optimum[draw] = optimum_s(ports, capacity_bps, dst, sprayed, experiment.size)
        for routing, own in routes.items():
            ratios[routing][draw] = times_s(ports, capacity_bps, dst, own, experiment.size) / optimum[draw]
        progress(draw + 1)
    return ratios, optimum


# --- the command ------------------------------------------------------------------------------------------------------


def _answer(options: argparse.Namespace, show: Show) -> Answer:
    experiment, measured = _experiment(options), dict[str, Any]()
    _warn(experiment)
    with ExitStack() as stack:
        measure = stack.enter_context(prepared(experiment)) if options.engine == "both" else None
        predicted, optimum = run(experiment, lambda done: show(f"{done} of {experiment.draws} draws"))
        if measure is not None:
            points = 2 * experiment.draws
            times_s = measure(lambda done: show(f"{done} of {points} points measured"), options.jobs)
            ratios = times_s.reshape(2, *predicted[ECMP].shape) / optimum[:, None]
            measured = dict(zip((ECMP, SPRAY), ratios, strict=True))
    lines = [_line(routing, "model", ratios) for routing, ratios in predicted.items()]
    lines += [_line(routing, "emulation", ratios, predicted[routing]) for routing, ratios in measured.items()]
    found = asdict(experiment) | {"grain": "physical", "optimum_s": float(optimum.mean())}

    def drawn() -> "Picture":
        from analysis.figures.flow_times import picture

        return picture(predicted, measured, title=_title(experiment))

    return Answer(
        tables=[_table(experiment, float(optimum.mean()), lines)],
        as_json=found | {"routings": [asdict(line) for line in lines]},
        picture=drawn,
    )


def _warn(experiment: Experiment) -> None:
    """Print the physical limits that an experiment is beyond."""
    from scenarios.spec.physical_limits import KnownLoad, notes

    rates_bps = [experiment.rate_bps, experiment.fabric_rate_bps]
    rates_bps += [experiment.wan_rate_bps] * (experiment.sites > 1)
    load = KnownLoad(
        fastest_bps=max(rates_bps),
        slowest_bps=min(rates_bps),
        message_bytes=experiment.size,
        connection_bytes=experiment.size,
    )
    for note in notes([("", load)]):
        print(f"{COMMAND}: {note}", file=sys.stderr)


def _line(routing: str, engine: str, ratios: "Floats", predicted: "Floats | None" = None) -> Line:
    """Return the line of a routing with these times / the optimum, [draws, hosts], and for measured ones their
    predictions."""
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


def _title(experiment: Experiment) -> str:
    from topologies.units import format_size

    sites = "1 site" if experiment.sites == 1 else f"{experiment.sites} sites"
    size, draws = format_size(experiment.size), f"{experiment.draws} draws"
    return f"permutation of {experiment.hosts:,} hosts, {sites}, {size}, {draws}, physical grain"


def _table(experiment: Experiment, optimum_s: float, lines: Sequence[Line]) -> Table[Line]:
    columns = [
        Column[Line]("routing", lambda line: line.routing),
        Column[Line]("engine", lambda line: line.engine),
        Column[Line]("median", lambda line: f"{line.median:.3f}"),
        Column[Line]("99 %", lambda line: f"{line.p99:.3f}"),
        Column[Line]("max", lambda line: f"{line.max:.3f}"),
        Column[Line]("last, mean", lambda line: f"{line.completion:.3f}"),
    ]
    if any(line.worst_message is not None for line in lines):
        columns += [
            Column[Line]("largest error: message", lambda line: _share(line.worst_message)),
            Column[Line]("last", lambda line: _share(line.worst_completion)),
        ]
    switches = f"in each site leaves: {experiment.leaves}, spines: {experiment.spines}"
    switches += f", border routers: {experiment.border_routers}" if experiment.sites > 1 else ""
    subject = f"flow completion times / the optimum ({optimum_s * 1e6:,.2f} us on average)"
    return Table(columns, lines, title=f"{_title(experiment)}\n{switches}\n{subject}")


def _share(error: float | None) -> str:
    return "" if error is None else f"{error:.2%}"


def _experiment(options: argparse.Namespace) -> Experiment:
    """Return the experiment given by the options; raises ValueError."""
    from topologies.units import parse_rate_bps, parse_size_bytes

    check_range(options, 2, _MAX_HOSTS, "hosts")
    check_range(options, 1, 8, "sites")
    check_range(options, 1, _MAX_DRAWS, "draws")
    check_range(options, 0, 2**63 - 1, "seed")
    check_range(options, 1, 64, "jobs")
    check_range(options, 1, _MAX_SWITCHES, "leaves", "spines", "border_routers")
    for name in ("border_routers", "wan_rate"):
        if options.sites == 1 and (value := getattr(options, name)) is not None:
            option = name.replace("_", "-")
            raise ValueError(f"--{option}: {value} does nothing in one site; allowed: with --sites 2 or more")
    each = max(1, options.hosts // options.sites)
    leaves = _power_of_two_near_root(each) if options.leaves is None else options.leaves
    spines = -(-each // leaves) if options.spines is None else options.spines
    if spines > _MAX_SWITCHES:  # a default, for many hosts on few leaves
        allowed = f"{-(-each // _MAX_SWITCHES)} to {_MAX_SWITCHES}, or fewer with --spines"
        raise ValueError(f"--leaves: {leaves} would need {spines} spines; allowed: {allowed}")
    given = {name: getattr(options, name) for name in ("rate", "fabric_rate", "wan_rate")}
    rates_bps = {
        name: quantity(COMMAND, f"--{name.replace('_', '-')}", text, parse_rate_bps)
        for name, text in given.items()
        if text is not None
    }
    return Experiment(
        hosts=options.hosts,
        sites=options.sites,
        leaves=leaves,
        spines=spines,
        border_routers=options.border_routers or 2,
        size=quantity(COMMAND, "--size", options.size, parse_size_bytes),
        rate_bps=rates_bps["rate"],
        fabric_rate_bps=rates_bps.get("fabric_rate", rates_bps["rate"]),
        wan_rate_bps=rates_bps.get("wan_rate", rates_bps["rate"]),
        draws=options.draws,
        seed=options.seed,
    )


def _power_of_two_near_root(hosts: int) -> int:
    """Return the number of leaves: the power of two just below the square root of the hosts, 1 or more."""
    return int(1 << max(0, (hosts.bit_length() - 1) // 2))


def _parser() -> CommandParser:
    parser = CommandParser(
        prog=COMMAND,
        description="Flow completion times of a permutation of messages under ECMP and spraying, against the optimum.",
        instead={"--gpus": "--hosts", "--chunk": "--size"},
    )
    parser.add_argument("--hosts", type=int, default=1024, help="number of all hosts (default 1024)")
    parser.add_argument(
        "--sites", type=int, default=1, help="number of sites, which have equally many hosts (default 1)"
    )
    parser.add_argument("--leaves", type=int, help="leaves of a site (default about the square root of its hosts)")
    parser.add_argument("--spines", type=int, help="spines of a site (default as many as a leaf has hosts)")
    parser.add_argument("--border-routers", type=int, help="of each of several sites (default 2)")
    parser.add_argument("--size", default="8 MB", help="size of a message (default 8 MB)")
    parser.add_argument("--rate", default="100 Gbit/s", help="rate of the hosts' cables (default 100 Gbit/s)")
    parser.add_argument("--fabric-rate", metavar="RATE", help="rate of other cables in a site (default as --rate)")
    parser.add_argument("--wan-rate", metavar="RATE", help="rate of a WAN link (default as --rate)")
    parser.add_argument("--draws", type=int, default=20, help="number of permutations and hashes (default 20)")
    parser.add_argument("--seed", type=int, default=1, help="seed of all draws (default 1)")
    parser.add_argument("--engine", choices=("model", "both"), default="model", help="(default model)")
    parser.add_argument("--jobs", type=int, default=1, help="VMs at a time (default 1)")
    add_output(parser)
    return parser


STUDY = Study(command=COMMAND, parser=_parser, answer=_answer)
