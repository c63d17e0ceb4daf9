"""Running a kernel without a GPU: Triton's interpreter, corrected where it differs from the hardware.

Triton can execute a kernel on CPU tensors, one program instance after another, every block operation in NumPy. That is
how a student without a GPU sees real values, and how tests compare every generated form with PyTorch. Five gaps are
closed here, for the duration of one run:

* libdevice has no interpretation; the functions the generator uses are evaluated by PyTorch on the CPU,
* a reduction or a scan by a combine function of ours takes one Python call per element; here whole parts of the block
  are merged at a time, in a tree, as a GPU does,
* float32 to bfloat16 truncates; it must round to nearest even; a product of bfloat16 tiles multiplies their bits,
* run-time checks (``tl.device_assert``) are ignored; they raise IndexError,
* a scalar truth value turns into a float when it is spread over a block; older versions let NaN win in ``fmax``,
  cannot complement unsigned integers, and trip over recent NumPy.

Triton decides at import whether its own library is interpreted; this module works whichever way it was imported,
and leaves no trace, so that kernels can be interpreted and compiled in the same process.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from ...errors import CodegenError
from ..kernel import Kernel
from .source_files import execute, require_triton, source_hash

# What PyTorch calls the libdevice functions that the generator uses.
LIBRARY: dict[str, Callable[..., torch.Tensor]] = {
    "rcp_rn": torch.reciprocal,
    "rsqrt": torch.rsqrt,
    "trunc": torch.trunc,
    "nearbyint": torch.round,
    # NumPy's is exact; PyTorch's vectorised one yields NaN where the quotient is huge.
    "fmod": lambda a, b: torch.from_numpy(np.fmod(a.numpy(), b.numpy())),
    "copysign": torch.copysign,
    "pow": torch.pow,
    "atan2": torch.atan2,
    "hypot": torch.hypot,
    "nextafter": torch.nextafter,
    "lgamma": torch.lgamma,
    "erf": torch.erf,
    "erfc": torch.erfc,
    **{
        name: getattr(torch, name)
        for name in (
            "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan",
            "sinh", "cosh", "tanh", "asinh", "acosh", "atanh",
        )
    },
}  # fmt: skip

_namespaces: dict[str, dict[str, Any]] = {}


def clear() -> None:
    """Forget every interpreted kernel."""
    _namespaces.clear()


def interpret(kernel: Kernel, tensors: Sequence[torch.Tensor]) -> None:
    """Run a Triton kernel on CPU tensors, in the order of ``kernel.arguments``; outputs are written in place.

    Raises CodegenError for a kernel that is not Triton's or for a wrong number of tensors, IndexError where a run-time
    check of an index fails, and whatever Triton's interpreter raises otherwise.
    """
    if kernel.language != "triton":
        raise CodegenError(f"{kernel.name} is a {kernel.language} kernel; only Triton kernels can be interpreted")
    if len(tensors) != len(kernel.arguments):
        raise CodegenError(f"{kernel.name} takes {len(kernel.arguments)} tensors, got {len(tensors)}")
    require_triton()
    grid = tuple(kernel.launch["grid"])
    if 0 in grid:
        return
    with _interpreting(debug="debug" in kernel.launch["options"]), np.errstate(all="ignore"):
        function = _function(kernel)
        from triton.runtime.errors import InterpreterError

        try:
            function[grid](*tensors, *kernel.launch["sizes"].values(), **kernel.launch["constants"])
        except InterpreterError as error:
            if "index out of bounds" in str(error):
                raise IndexError(f"{kernel.name}: {error}") from error
            raise


def _function(kernel: Kernel) -> Any:
    """The kernel and its helpers as interpreted functions, with a libdevice that works."""
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    key = source_hash(kernel)
    if key not in _namespaces:
        namespace = execute(kernel)
        for name, value in list(namespace.items()):
            if isinstance(value, JITFunction):
                namespace[name] = InterpretedFunction(value.fn)
        if "libdevice" in namespace:
            namespace["libdevice"] = _library()
        _namespaces[key] = namespace
    return _namespaces[key][kernel.name]


def _library() -> SimpleNamespace:
    return SimpleNamespace(**{name: _elementwise(function) for name, function in LIBRARY.items()})


def _elementwise(function: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    def call(*operands: Any) -> Any:
        import triton.language as tl
        from triton.runtime.interpreter import TensorHandle

        dtype = operands[0].dtype
        values = [torch.from_numpy(np.array(o.handle.data)) for o in operands]
        result = function(*values).numpy()
        blocks = [o for o in operands if o.type.is_block()]
        kind = tl.block_type(dtype, list(result.shape)) if blocks else dtype
        return tl.core.tensor(TensorHandle(result, dtype.scalar), kind)

    return call


@contextlib.contextmanager
def _interpreting(debug: bool) -> Iterator[None]:
    """The corrections, undone afterwards together with everything Triton's interpreter itself leaves patched."""
    import triton.language as tl
    from triton.runtime import interpreter
    from triton.runtime.jit import JITFunction

    builder = interpreter.interpreter_builder
    saved_options = builder.options
    patched = [tl, tl.core, tl.math, tl.core.tensor, tl.core.dtype, JITFunction, interpreter, interpreter.ReduceOps]
    patched += [interpreter.ScanOps]
    patched += [c for c in (getattr(tl.core, n, None) for n in ("tensor_descriptor_base", "condition")) if c]
    before = [(owner, dict(vars(owner))) for owner in patched]
    environment = os.environ.get("TRITON_INTERPRET")
    os.environ["TRITON_INTERPRET"] = "1"
    try:
        # Triton's own library functions (tl.sum...) are compiled ones if Triton was imported without the variable.
        JITFunction.__call__ = lambda self, *args, **kwargs: interpreter.InterpretedFunction(self.fn)(*args, **kwargs)
        interpreter.ReduceOps.generic_reduce = _merge_halves
        interpreter.ScanOps.generic_scan = _merge_prefixes
        interpreter._patch_lang_tensor = _with_index(interpreter._patch_lang_tensor)
        vars(builder).update(
            create_fp_trunc=lambda source, target: _narrow(builder, source, target),
            create_maxnumf=lambda a, b: builder.binary_op(a, b, np.fmax),
            create_minnumf=lambda a, b: builder.binary_op(a, b, np.fmin),
            get_all_ones_value=_all_ones,
            create_splat=_splat,
            create_dot=_dot,
        )
        builder.options = interpreter.InterpreterOptions(debug=debug, sanitize_overflow=False)
        yield
    finally:
        builder.options = saved_options
        for name in _CORRECTED:
            vars(builder).pop(name, None)
        for owner, attributes in before:
            _restore(owner, attributes)
        if environment is None:
            del os.environ["TRITON_INTERPRET"]
        else:
            os.environ["TRITON_INTERPRET"] = environment


_CORRECTED = ("create_fp_trunc", "create_maxnumf", "create_minnumf", "get_all_ones_value", "create_splat", "create_dot")


def _restore(owner: Any, attributes: dict[str, Any]) -> None:
    for name in set(vars(owner)) - set(attributes):
        delattr(owner, name)
    for name, value in attributes.items():
        if vars(owner).get(name) is not value:
            setattr(owner, name, value)


def _merge_halves(operation: Any, inputs: tuple) -> list:
    """A reduction by merging the two halves of the block until one slice is left (block sizes are powers of two)."""
    axis = operation.axis
    arrays = [value.handle.data for value in inputs]
    kinds = [value.dtype for value in inputs]
    if axis is None:
        axis, arrays = 0, [array.reshape(-1) for array in arrays]
    while arrays[0].shape[axis] > 1:
        halves = [np.split(array, 2, axis=axis) for array in arrays]
        first = [operation.to_tensor(half[0], kind) for half, kind in zip(halves, kinds, strict=True)]
        second = [operation.to_tensor(half[1], kind) for half, kind in zip(halves, kinds, strict=True)]
        merged = operation.combine_fn.fn(*first, *second)
        merged = merged if isinstance(merged, tuple) else (merged,)
        arrays = [value.handle.data for value in merged]
    if not operation.keep_dims:
        arrays = [np.squeeze(array, axis=axis) for array in arrays]
    return [operation.to_tensor(array, kind) for array, kind in zip(arrays, kinds, strict=True)]


def _merge_prefixes(operation: Any, inputs: Sequence[Any]) -> list:
    """A scan by doubling: every lane takes in the prefix that ends 1, 2, 4, ... lanes before it (Hillis and Steele)."""
    axis = operation.axis
    arrays = [value.handle.data for value in inputs]
    kinds = [value.dtype for value in inputs]
    distance, length = 1, arrays[0].shape[axis]
    place = np.arange(length).reshape([-1 if d == axis else 1 for d in range(arrays[0].ndim)])
    while distance < length:
        earlier = [np.roll(array, distance, axis=axis) for array in arrays]
        operands = [operation.to_tensor(a, kind) for a, kind in zip((*earlier, *arrays), kinds * 2, strict=True)]
        merged = operation.combine_fn.fn(*operands)
        merged = merged if isinstance(merged, tuple) else (merged,)
        arrays = [
            np.where(place >= distance, value.handle.data, array).astype(array.dtype)
            for value, array in zip(merged, arrays, strict=True)
        ]
        distance *= 2
    return [operation.to_tensor(array, kind) for array, kind in zip(arrays, kinds, strict=True)]


def _with_index(patch: Callable[..., None]) -> Callable[..., None]:
    """Triton's patch of its tensor class, with a loop bound that may be an array of one element."""

    def patch_tensor(tensor: Any, *rest: Any) -> None:
        patch(tensor, *rest)
        tensor.__index__ = lambda self: int(self.handle.data.reshape(()))

    return patch_tensor


def _all_ones(kind: Any) -> Any:
    """The integer of all ones, of any signedness."""
    from triton.runtime.interpreter import TensorHandle, _get_np_dtype

    dtype = _get_np_dtype(kind)
    ones = np.invert(np.zeros(1, dtype=dtype))
    return TensorHandle(ones, kind.scalar)


def _splat(kind: Any, scalar: Any) -> Any:
    """A block of one value. The interpreter labels the result of a comparison with its operands' dtype, so the data
    itself has to say what it is."""
    from triton.runtime.interpreter import TensorHandle

    block = np.full(kind.shape, scalar.data.reshape(-1)[0], dtype=scalar.data.dtype)
    return TensorHandle(block, scalar.dtype.scalar)


def _dot(a: Any, b: Any, accumulator: Any, *_: Any) -> Any:
    """A product of two tiles, added to the accumulator; its operands are widened to float32, which is exact."""
    from triton.runtime.interpreter import TensorHandle

    product = np.matmul(_as_float32(a), _as_float32(b), dtype=np.float32)
    return TensorHandle(product + accumulator.data, accumulator.dtype.scalar)


def _as_float32(handle: Any) -> np.ndarray:
    """The numbers of a handle. Those that NumPy does not have are kept as bits."""
    import triton.language as tl

    bits = {tl.bfloat16: torch.bfloat16, tl.float8e4nv: torch.float8_e4m3fn}.get(handle.dtype.scalar)
    if bits is None:
        return handle.data.astype(np.float32)
    signed = handle.data.view(np.int16 if bits == torch.bfloat16 else np.uint8)
    return torch.from_numpy(np.ascontiguousarray(signed)).view(bits).float().numpy()


def _narrow(builder: Any, source: Any, target: Any) -> Any:
    """Floating-point narrowing; to bfloat16 with rounding to nearest even, which Triton's interpreter lacks."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    if target.scalar != tl.bfloat16:
        return builder.cast_impl(source, target)
    rounded = torch.from_numpy(np.array(source.data, dtype=np.float32)).to(torch.bfloat16)
    return TensorHandle(rounded.view(torch.int16).numpy().view(np.uint16), tl.bfloat16)
