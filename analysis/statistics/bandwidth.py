"""Bandwidths of collectives as nccl-tests defines them."""


def busbw_factor(kind: str, gpus: int) -> float:
    """Return the factor that turns size / time into the "bus bandwidth" of nccl-tests (its doc/PERFORMANCE.md)."""
    if kind == "allreduce":
        return 2 * (gpus - 1) / gpus
    return 1.0 if kind in ("broadcast", "reduce", "sendrecv") else (gpus - 1) / gpus
