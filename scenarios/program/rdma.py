"""The verbs devices of the GPUs' hosts, which programs use for RDMA (`transport.rdma`)."""

from contextlib import closing

from scenarios.testbed.testbed import Testbed
from topologies.mininet_network import inside
from topologies.shaping.rdma import RdmaNetlink


def set_up_rdma(testbed: Testbed) -> None:
    """Give each GPU's host a verbs device if `transport.rdma` names a kind, and it has none; raises OSError.

    It is named after its kind and its host, such as rxe_g3: the kernel has one list of names for all hosts.
    """
    kind = testbed.config.transport.rdma
    if kind is None:
        return
    for gpu, pid in zip(testbed.fabric.gpus, testbed.network.host_pids, strict=True):
        with inside(pid), closing(RdmaNetlink()) as netlink:
            netlink.add_device(f"{kind}_{gpu.name}", kind, gpu.interface)
