"""The rates that a program's connections want from one site to another, measured by the counters of tunnels."""

import numpy as np
import numpy.typing as npt

from scenarios.policies.measured_knowledge import measured_demands_within
from scenarios.policies.outcome import Readings
from scenarios.spec.te import TeSpec
from scenarios.testbed.testbed import Testbed

Floats = npt.NDArray[np.float64]


class TunnelDemands:
    """Reads the tunnels' counters every `spec.sample_s`, and infers every `spec.every` seconds what sites want.

    The times are in ns since the ranks' start. The rules are those of rates that change within a collective
    (`measured_demands_within`): a site that has sent nothing wants nothing, one that has filled its tunnels wants all,
    and any other a tenth more than its highest mean rate over a sample.
    """

    def __init__(self, testbed: Testbed, spec: TeSpec) -> None:
        self._testbed, self._spec = testbed, spec
        self._sample_ns, self.next_ns = round(spec.sample_s * 1e9), 0
        self._at_ns, self._sent = list[int](), list[dict[int, int]]()

    def read(self, now_ns: int) -> Floats | None:
        """Read if it is due; return the rates that are wanted, [sites, sites] bit/s, if they are to be computed now.
        Raises OSError."""
        if now_ns < self.next_ns:
            return None
        self.next_ns = now_ns - now_ns % self._sample_ns + self._sample_ns
        ((_, _, sent),) = self._testbed.tunnel_counters().values()
        self._at_ns.append(now_ns)
        self._sent.append(dict(sent))
        if len(self._sent) <= self._spec.readings:
            return None
        wanted = self._wanted_bps()
        del self._at_ns[:-1], self._sent[:-1]
        return wanted

    def _wanted_bps(self) -> Floats:
        tunnels = sorted(self._sent[0])
        bytes_sent = np.array([[sent[tunnel] for tunnel in tunnels] for sent in self._sent], np.int64)
        at_s = np.tile(np.array(self._at_ns)[:, None] / 1e9, len(tunnels))
        read = Readings(link=np.array(tunnels, np.int32), since_s=at_s, until_s=at_s, sent_bytes=bytes_sent)
        workload, given_bps = self._testbed.config.workload, self._testbed.limits_bps
        wanted = measured_demands_within(self._testbed.fabric, workload, read, 1, given_bps, spec=self._spec)
        assert wanted is not None
        (of_sites,) = wanted  # one class
        return np.where(np.isnan(of_sites), np.inf, of_sites)
