"""Bandwidths of collectives as nccl-tests has them."""


def busbw_factor(kind: str, gpus: int) -> float:
    """What nccl-tests multiplies size / time with for the "bus bandwidth" (its doc/PERFORMANCE.md)."""
    if kind == "allreduce":
        return 2 * (gpus - 1) / gpus
    return 1.0 if kind in ("broadcast", "reduce") else (gpus - 1) / gpus
