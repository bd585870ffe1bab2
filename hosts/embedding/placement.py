"""TEMPORARY"""

from typing import Any

import numpy as np


def best_placements(schedule: Any, *, delay_s: Any, beta_s: Any, sites: Any, is_rooted: bool) -> Any:
    return np.tile(np.arange(delay_s.shape[1], dtype=np.int16), (len(delay_s), 1))
