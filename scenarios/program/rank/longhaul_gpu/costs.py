"""What an aten operation costs a GPU: floating-point operations, and bytes read from and written to memory."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.utils.flop_counter import flop_registry, register_flop_formula, sdpa_backward_flop_count, sdpa_flop_count

_aten = torch.ops.aten

if _aten._scaled_dot_product_flash_attention_for_cpu not in flop_registry:  # torch counts only CUDA's attention

    @register_flop_formula(_aten._scaled_dot_product_flash_attention_for_cpu)  # type: ignore[untyped-decorator]
    def _attention(query: Any, key: Any, value: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
        return int(sdpa_flop_count(query, key, value))

    @register_flop_formula(_aten._scaled_dot_product_flash_attention_for_cpu_backward)  # type: ignore[untyped-decorator]
    def _attention_backward(
        grad: Any, query: Any, key: Any, value: Any, *_: Any, out_shape: Any = None, **__: Any
    ) -> int:
        return int(sdpa_backward_flop_count(grad, query, key, value))


def _names(*lines: str) -> frozenset[str]:
    return frozenset(name for line in lines for name in line.split())


_NO_KERNEL = _names(
    "_local_scalar_dense _unsafe_view alias as_strided detach empty empty_like empty_permuted empty_strided",
    "is_same_size lift lift_fresh new_empty new_empty_strided record_stream resize_ set_ set_data _reshape_alias",
    "_has_compatible_shallow_copy_type is_pinned _pin_memory unsafe_split",
    "unsafe_chunk unsafe_split_with_sizes _debug_has_internal_overlap",
)
"""Operations that only make or describe tensors, beside views."""

_WRITES_FIRST = _names(
    "copy_ fill_ zero_ normal_ uniform_ random_ bernoulli_ exponential_ trunc_normal_",
)
"""Operations that write their first argument without reading it."""

_READS_PARTS = _names(
    "embedding gather index index_select _unsafe_index nll_loss_forward nll_loss_backward nll_loss2d_forward",
    "nll_loss2d_backward embedding_dense_backward take slice_backward select_backward multinomial",
)
"""Operations that read of a tensor no more than they write, or than they read of the others."""

_MOVES_BYTES = _names(
    "_batch_norm_with_update _cdist_forward _embedding_bag _fused_dropout _fused_rms_norm",
    "_fused_rms_norm_backward _log_softmax _log_softmax_backward_data _native_batch_norm_legit _pdist_forward",
    "_safe_softmax _softmax _softmax_backward_data _to_copy _trilinear adaptive_avg_pool2d _adaptive_avg_pool2d",
    "_adaptive_avg_pool2d_backward _amp_foreach_non_finite_check_and_unscale_ _amp_update_scale_ all amax amin",
    "aminmax any arange argmax argmin avg_pool1d avg_pool2d avg_pool2d_backward avg_pool3d batch_norm_backward",
    "bernoulli binary_cross_entropy bincount bucketize cat clone col2im concat constant_pad_nd contiguous",
    "convert_element_type copy copy_ count_nonzero cummax cummin cumprod cumsum diag_embed diff dist dropout equal",
    "embedding embedding_dense_backward expand_copy exponential_ eye fill_ flip full full_like gather glu",
    "glu_backward histc im2col index index_add index_add_ index_copy index_copy_ index_fill index_fill_ index_put",
    "index_put_ _index_put_impl_ index_select isin kthvalue l1_loss linalg_vector_norm linspace logcumsumexp",
    "logsumexp masked_fill masked_fill_ masked_scatter masked_select max max_pool2d max_pool2d_with_indices",
    "max_pool2d_with_indices_backward max_pool3d_with_indices maximum mean median min minimum mode mse_loss",
    "mse_loss_backward multinomial native_batch_norm native_batch_norm_backward native_dropout",
    "native_dropout_backward native_group_norm native_group_norm_backward native_layer_norm",
    "native_layer_norm_backward new_full new_ones new_zeros nll_loss2d_backward nll_loss2d_forward",
    "nll_loss_backward nll_loss_forward nonzero norm normal normal_ one_hot ones ones_like prod rand rand_like",
    "randint randint_like randn randn_like random_ randperm reflection_pad1d reflection_pad2d repeat",
    "repeat_interleave replication_pad2d roll rms_norm scalar_tensor scatter scatter_ scatter_add scatter_add_",
    "scatter_reduce scatter_reduce_ select_backward select_scatter slice_backward slice_scatter smooth_l1_loss",
    "sort split_with_sizes_copy stack std std_mean sum take topk trapezoid tril tril_indices triu triu_indices",
    "unfold_backward uniform uniform_ unique_consecutive _unique2 upsample_bilinear2d",
    "upsample_bilinear2d_backward upsample_nearest2d upsample_nearest2d_backward var var_mean where zero_ zeros",
    "zeros_like _chunk_cat _foreach_copy_ split_copy",
)
"""Operations that are known to be bound by memory, beside those that torch marks as pointwise or as reductions."""

_MARKS = [getattr(torch.Tag, name) for name in ("pointwise", "reduction") if hasattr(torch.Tag, name)]
_SHAPED_BY_DATA = [torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape]


class Cost(NamedTuple):
    """What one kernel costs. `is_known` is false for an operation of which nothing but its tensors is known."""

    flops: float
    moved_bytes: float
    dtype: str
    is_known: bool


def has_no_kernel(func: Any) -> bool:
    """Return whether an operation launches no kernel: a view, or an empty tensor."""
    is_view = func.is_view or torch.Tag.inplace_view in func.tags
    return bool(is_view) or func._overloadpacket.__name__ in _NO_KERNEL


def blocks_host(func: Any, args: Any) -> bool:
    """Return whether the host waits for the operation's result: it reads a value, or needs it for a shape."""
    if func._overloadpacket.__name__ in ("index", "index_put", "index_put_", "_index_put_impl_"):
        indices = args[1] if len(args) > 1 else ()
        return any(one is not None and one.dtype in (torch.bool, torch.uint8) for one in indices)
    return any(tag in func.tags for tag in _SHAPED_BY_DATA)


def tensors_of(tree: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in arguments, in order."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, (list, tuple)):
        for part in tree:
            yield from tensors_of(part)
    elif isinstance(tree, dict):
        yield from tensors_of(tuple(tree.values()))


def held_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of memory that the elements of a strided tensor take: those that are repeated count once."""
    if tensor.layout is not torch.strided:
        return int(tensor.element_size() * tensor.numel())
    sizes: list[int] = [size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride or not size]
    return int(tensor.element_size()) * math.prod(sizes)


def dtype_of(func: Any, tensors: list[torch.Tensor]) -> str:
    """Return the dtype by which an operation's peak is chosen: that of its first tensor of floats ("bfloat16"), "tf32"
    where torch may use TF32, that of its first tensor if there are no floats."""
    found = next((one.dtype for one in tensors if one.dtype.is_floating_point), None)
    if found is torch.float32:
        convolves = "convolution" in func._overloadpacket.__name__
        allowed = torch.backends.cudnn.allow_tf32 if convolves else torch.get_float32_matmul_precision() != "highest"
        return "tf32" if allowed else "float32"
    if found is None:
        found = tensors[0].dtype if tensors else torch.float32
    return str(found).removeprefix("torch.")


def cost_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Cost:
    """Return what an operation costs that took these arguments and returned `out`."""
    packet, name = func._overloadpacket, func._overloadpacket.__name__
    inputs, outputs = list(tensors_of((args, kwargs))), list(tensors_of(out))
    written = sum(map(held_bytes, outputs))
    if not outputs and func._schema.is_mutable:  # _foreach_add_ and the like return nothing
        written = sum(held_bytes(one) for one in written_by(func, args, kwargs))
    read = [held_bytes(one) for one in inputs]
    if name in _WRITES_FIRST:
        read = read[1:]
    elif func.namespace == "aten" and "out" in kwargs:
        read = read[: len(read) - len(list(tensors_of(kwargs["out"])))]
    elif name in _READS_PARTS:
        most = max(written, sum(read) - max(read, default=0))
        read = [min(one, most) for one in read]
    flops, is_counted = 0.0, packet in flop_registry
    if is_counted:
        flops = float(flop_registry[packet](*args, **kwargs, out_val=out))
    is_known = (
        is_counted
        or name in _MOVES_BYTES
        or name.removesuffix("_") in _MOVES_BYTES
        or func.namespace == "fsdp"  # copies into and out of what FSDP2 sends
        or name.startswith(("_foreach_", "_fused_"))
        or any(tag in func.tags for tag in _MARKS)
    )
    return Cost(flops, float(written + sum(read)), dtype_of(func, inputs or outputs), is_known)


def written_by(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors that an operation writes, by its schema."""
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from tensors_of(args[index] if index < len(args) else kwargs.get(argument.name))
