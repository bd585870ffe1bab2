"""The verbs devices of the GPUs' hosts, which programs use for RDMA (`transport.rdma`), and agents, too."""

from collections.abc import Mapping, Sequence
from contextlib import closing

from topologies.fabric.addressing import Gpu
from topologies.mininet_network import inside
from topologies.shaping.rdma import RdmaNetlink


def add_verbs_devices(gpus: Sequence[Gpu], pids: Mapping[int, int], kind: str) -> None:
    """Give each host, a process by its GPU's rank, a verbs device of a kind; raises OSError.

    It is named after its kind and its host, such as rxe_g3: the kernel has one list of names for all hosts.
    """
    for rank, pid in pids.items():
        with inside(pid), closing(RdmaNetlink()) as netlink:
            netlink.add_device(f"{kind}_{gpus[rank].name}", kind, gpus[rank].interface)
