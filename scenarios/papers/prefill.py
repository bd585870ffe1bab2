"""Prefill as a service (PrfaaS, arXiv 2604.15039): requests that are prefilled in a remote site, all or selectively.

`scenarios.studies.requests` computes it; its options change what is assumed here.
"""

from collections.abc import Iterator
from typing import Any

from scenarios.papers.paper import Claim, Paper, Repeated, Settings
from scenarios.studies import requests
from scenarios.studies.harness import Show, Table

_RATE = "10 Gbit/s"
_CROWDED = 100
_WHY = "its model, its servers, its traffic and the WAN's rate are not public; here half of the servers are remote"


def _repeat(settings: Settings, show: Show) -> Repeated:
    def answered(*options: str) -> Any:
        chosen = ["--seed", str(settings.seed), "--draws", "1", *options]
        return requests.STUDY.answer(requests.STUDY.parser().parse_args(chosen), show)

    plain = answered()
    crowded = answered("--per-second", str(_CROWDED), "--wan-rates", _RATE, "-n", "5000")
    tables, lines, problems = [*plain.tables], [*plain.as_json], list[str]()
    if settings.measures:
        beside = answered("--wan-rates", _RATE, "--rules", "remote,selective", "--engine", "both", "--measured", "100")
        tables += beside.tables
        lines += beside.as_json
        problems += beside.problems
    per_s = {line["rule"]: line["served_per_s"] for line in crowded.as_json}
    return Repeated(
        tables=[table for table in tables if isinstance(table, Table)],
        claims=[*_claims(per_s, {line["rule"]: line for line in plain.as_json if line["wan_bps"] == 10e9})],
        lines=lines + crowded.as_json,
        picture=plain.picture,
        problems=problems,
    )


def _claims(per_s: dict[str, float], lines: dict[str, Any]) -> Iterator[Claim]:
    yield Claim(
        says="selective offloading serves N times the requests of the local site alone",
        found=per_s["selective"] / per_s["local"],
        published=1.54,
        neutral=1,
        because=_WHY,
    )
    yield Claim(
        says="selective offloading serves N times the requests of prefilling all in the remote site",
        found=per_s["selective"] / per_s["remote"],
        published=1.32,
        neutral=1,
        because=_WHY,
    )
    yield Claim(
        says="selective offloading makes the 90th percentile of the time to first token N times the local site's",
        found=lines["selective"]["p90_s"] / lines["local"]["p90_s"],
        published=1 - 0.64,
        neutral=1,
        because=f"{_WHY}, and the local site is at 0.8 of its load",
    )


PAPER = Paper(
    reference="Qin et al., Prefill-as-a-Service (arXiv 2604.15039)",
    result="throughput and time to first token of all-local, all-remote and selective prefill over WAN rates",
    assumed=[
        "4 local servers that prefill a token in 80 us, and 4 remote ones in 40 us; caches of 20 kB a token; 10 ms",
        "5 requests a second, of 8,000 tokens on average (exponential), and 200 output tokens of 20 ms",
        f"throughput: 5,000 requests at {_CROWDED} a second, more than can be served, over {_RATE}",
    ],
    repeat=_repeat,
)
