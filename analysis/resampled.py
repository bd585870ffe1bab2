"""The conditions of a stored collective drawn once more from the run's seed.

A run stores the conditions of what it measured and not of what it reckoned, a hundred thousand times as many; but they
are a function of the seed, the collective and the link. What comes of them is to be held against what is stored.
"""

import numpy as np
import numpy.typing as npt

from analysis.points import Setting
from topologies.samplers import Gaussian, Markov, Uniform

Floats = npt.NDArray[np.float64]


def rates_again(setting: Setting, number: int) -> tuple[Floats, Floats] | None:
    """The rate and the delay of every logical link for a collective, [links] each; None where a trace gave them."""
    values = setting["values"]
    links = setting["fabric"]["links"]
    ranges = [values[f"conditions.{'wan' if link['kind'] == 'wan' else 'intra'}_rate"] for link in links]
    low, high = (np.array(ends, dtype=np.float64) for ends in zip(*ranges, strict=True))
    delays_s = [values[f"conditions.{'wan' if link['kind'] == 'wan' else 'intra'}_delay"] for link in links]
    seed, kind = values["run.seed"], values["conditions.sampler"]
    draws: Uniform | Gaussian | Markov
    if kind == "uniform":
        draws = Uniform(low, high, seed=seed)
    elif kind == "gaussian":
        mean, deviation = values["conditions.mean"], values["conditions.deviation"]
        draws = Gaussian(low, high, mean=mean, deviation=deviation, seed=seed)
    elif kind == "markov":
        draws = Markov(low, high, mean_stay=values["conditions.mean_stay"], seed=seed)
    else:
        return None
    return draws.rates_bps(number, 1)[0], np.array(delays_s, dtype=np.float64)
