"""What kind of question a call asks (Table 3.2): an operation to record, metadata, data, or something a graph cannot
hold."""

from __future__ import annotations

from typing import Any

# Answered from the inputs' signatures: no computation is needed, and the key already covers them.
METADATA_PROPERTIES = frozenset(
    {"shape", "dtype", "device", "layout", "ndim", "is_cuda", "is_cpu", "is_xpu", "is_mps", "is_meta", "is_sparse",
     "is_sparse_csr", "is_quantized", "is_nested", "is_mkldnn", "is_ipu", "is_xla", "is_mtia", "is_maia", "is_vulkan",
     "itemsize", "nbytes"}
)  # fmt: skip
METADATA_CALLS = frozenset(
    {"size", "dim", "ndimension", "numel", "nelement", "stride", "is_contiguous", "element_size", "is_floating_point",
     "is_complex", "is_signed", "get_device", "__len__", "result_type", "can_cast", "is_conj", "is_neg",
     "is_tensor", "dim_order", "sym_size", "sym_numel", "sym_stride", "is_coalesced"}
)  # fmt: skip
# Answers made of sizes and strides. All others follow from ranks and dtypes.
SHAPE_ATTRIBUTES = frozenset(
    {"shape", "size", "numel", "nelement", "__len__", "stride", "nbytes", "is_contiguous", "dim_order",
     "sym_size", "sym_numel", "sym_stride"}
)  # fmt: skip

# Getters that yield a tensor: operations like any other.
TENSOR_PROPERTIES = frozenset({"T", "mT", "H", "mH", "real", "imag", "data"})

# A plain Python value derived from tensor data: a data gate of this kind.
GATE_METHODS = {
    "__bool__": "bool", "__int__": "int", "__float__": "float", "__index__": "index", "__complex__": "complex",
    "item": "item", "tolist": "tolist", "__nonzero__": "bool",
}  # fmt: skip

# Text made of tensor data. Almost always for a log: noted as a Python side effect.
FORMATTING = frozenset({"__repr__", "__str__", "__format__"})

# Outputs that never require grad although an input does.
NON_DIFFERENTIABLE = frozenset(
    {"detach", "detach_", "data", "zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like",
     "randint_like", "new_zeros", "new_ones", "new_empty", "new_full", "new_tensor", "argmax", "argmin", "sign_bit",
     "tensor", "empty_strided", "new_empty_strided", "histc"}
    | {f"special_{name}" for name in (
        "airy_ai", "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "chebyshev_polynomial_t",
        "chebyshev_polynomial_u", "chebyshev_polynomial_v", "chebyshev_polynomial_w", "hermite_polynomial_h",
        "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p", "modified_bessel_i0",
        "modified_bessel_i1", "modified_bessel_k0", "modified_bessel_k1", "scaled_modified_bessel_k0",
        "scaled_modified_bessel_k1", "shifted_chebyshev_polynomial_t", "shifted_chebyshev_polynomial_u",
        "shifted_chebyshev_polynomial_v", "shifted_chebyshev_polynomial_w", "spherical_bessel_j0")}
)  # fmt: skip

# The same for some of several outputs: their positions.
NON_DIFFERENTIABLE_RESULTS: dict[str, tuple[int, ...]] = {
    "linalg_lu": (0,), "lu_unpack": (0,), "linalg_lstsq": (3,), "native_layer_norm": (1, 2),
    "native_batch_norm": (1, 2), "_native_batch_norm_legit": (1, 2), "_batch_norm_with_update": (1, 2, 3),
}  # fmt: skip

# Results that share memory with the argument and are no views of it as far as gradients are concerned.
LEAVES_FAMILY = frozenset({"detach", "data"})

DATA_REMEDY = "keep the computation in PyTorch operations, or move this step out of the compiled function"
_GRAD_REMEDY = "call it outside the compiled function: compile the forward computation only"
REFUSED: dict[str, tuple[str, str]] = {
    **dict.fromkeys(
        ("numpy", "__array__", "__array_wrap__", "__dlpack__", "__dlpack_device__", "apply_", "map_", "map2_"),
        ("hands tensor data to code outside PyTorch", DATA_REMEDY),
    ),
    **dict.fromkeys(
        ("data_ptr", "untyped_storage", "storage", "_typed_storage", "share_memory_", "is_set_to", "set_", "_storage",
         "__cuda_array_interface__", "const_data_ptr", "mutable_data_ptr"),
        ("reaches for the memory behind a tensor", DATA_REMEDY),
    ),
    **dict.fromkeys(
        ("backward", "grad", "register_hook", "register_post_accumulate_grad_hook", "retain_grad", "_version", "_base",
         "_grad", "_grad_fn", "_backward_hooks", "output_nr", "retains_grad", "_post_accumulate_grad_hooks"),
        ("uses the autograd state of a tensor", _GRAD_REMEDY),
    ),
    **dict.fromkeys(
        ("__reduce_ex__", "__reduce__", "__setstate__", "_reduce_ex_internal"),
        ("serializes a tensor", DATA_REMEDY),
    ),
}  # fmt: skip

# Functions (not methods) refused by name and module prefix.
REFUSED_MODULES = {"torch.autograd": ("computes gradients while the function runs", _GRAD_REMEDY)}


def refused_function(func: Any) -> tuple[str, str] | None:
    """Why a free function cannot be recorded, with the remedy; None if it can."""
    module = getattr(func, "__module__", None) or ""
    for prefix, reason in REFUSED_MODULES.items():
        if module == prefix or module.startswith(prefix + "."):
            return reason
    return None
