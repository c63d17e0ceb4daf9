"""The tracer (Sections 3.2 and 3.3): run the function on a sample, and write down what it does.

Tracing here is *hybrid*. Every call that PyTorch dispatches reaches :meth:`Tracer.__torch_function__`, which appends a
node to the graph **and** runs the call on the sample. Control flow therefore just happens: loops unroll, calls inline
(submodules too), and of a branch only the side taken is recorded. Three kinds of calls are told apart (Table 3.2):

* an operation: a node; its value on the sample is described in ``node.meta["val"]``;
* a question about metadata (``x.shape``, ``len(x)``, ``x.dtype``): answered at once and noted as a :class:`ShapeRead`;
* a question about data (``if x.sum() > 0``, ``int(x.max())``): answered from the sample and noted as a
  :class:`~staxlab.capture.gates.DataGate`, which later calls have to answer in the same way.

What a graph cannot express ends in a :class:`~staxlab.errors.CaptureError` that names the user's line. An exception of the
user's own code passes through with its own traceback.
"""

from __future__ import annotations

import builtins
import inspect

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..errors import CaptureError, StaxError
from ..options import Options
from ..specialize.ambient import recording
from ..specialize.free_variables import Environment, Place, collect
from ..specialize.structure import Parameters, argument_leaves
from . import classify
from .binding import compile_bind, output_specification
from .gates import KINDS, DataGate, replay_graph
from .graph import Graph, Node, TensorMeta, describe_value, map_nodes
from .isolation import CallFacts, RandomState, Watcher, storage_key
from .module import GraphModule
from .proxy import Proxy, Symbol, SymbolTable
from .record import Capture, Input, PythonEffect, ShapeRead
from .spelling import Frame, property_access, spell, tensor_methods


_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device, torch.layout,
          torch.memory_format)  # fmt: skip


def active_tracer() -> Tracer | None:
    """The tracer that is recording on this thread, if any."""
    return recording.tracer


def trace(
    fn: Any,
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    execute: bool = True,
    options: Options | None = None,
) -> Capture:
    """Record ``fn(*args, **kwargs)`` as a graph (Section 3).

    ``args`` and ``kwargs`` are the sample: real tensors (and any other values) of the call to specialize on. Their data,
    and the state of random number generators, are the same afterwards as before. ``execute=False`` records without
    running: shapes are known for inputs only, and control flow that depends on data is refused.

    Raises CaptureError, naming the user's line, where the function cannot be recorded; exceptions of ``fn`` itself pass
    through unchanged. Time and memory are those of one eager call plus tens of microseconds per operation.
    """
    return Tracer(fn, tuple(args), dict(kwargs or {}), execute, options or Options()).run()


class Tracer(TorchFunctionMode):
    """One recording. While it is active, every PyTorch call of this thread passes through it."""

    def __init__(self, fn: Any, args: tuple, kwargs: dict, execute: bool, options: Options):
        super().__init__()
        self.fn, self.args, self.kwargs = fn, args, kwargs
        self.execute, self.options = execute, options
        self.graph = Graph()
        self.symbols = SymbolTable()
        self.gates: list[DataGate] = []
        self.shape_reads: list[ShapeRead] = []
        self.effects: list[PythonEffect] = []
        self.inputs: list[Input] = []
        self.samples: list[torch.Tensor] = []
        self.free_places: list[Place] = []
        self.watcher = Watcher()
        self.entry_grad = torch.is_grad_enabled()
        self.entry_autocast = _autocast_state()
        self.detached: dict[Node, Node] = {}
        self.caught: tuple[BaseException, Any] | None = None
        self.frame: Frame | None = None
        self.environment = Environment()
        self._free_by_id: dict[int, tuple[Place, torch.Tensor]] = {}
        self._first_argument: Node | None = None

    # -- the recording as a whole -----------------------------------------------------------------------------------

    def run(self) -> Capture:
        if active_tracer() is not None:
            raise CaptureError("a trace is already being recorded on this thread")
        parameters = Parameters.of(self.fn)
        scope: dict[str, Any] = {}
        leaves = list(argument_leaves(self.args, self.kwargs, parameters.name, scope))
        roots = [(leaf.path, leaf.value) for leaf in leaves if not isinstance(leaf.value, (torch.Tensor, *_PLAIN))]
        self.environment = collect(self.fn, roots)
        for place in self.environment.tensors:
            tensor = place.read()
            self._free_by_id.setdefault(id(tensor), (place, tensor))
        expressions = self._make_placeholders(leaves)
        random_state = RandomState()
        self.watcher.start(random_state)
        recording.tracer = self
        try:
            result = self._call()
            self._check_after(random_state)
            spec = self._finish(result)
        finally:
            recording.tracer = None
            self.watcher.restore()
            random_state.restore()
        module = GraphModule(self.graph)
        source, line, file = _source_of(self.fn)
        return Capture(
            name=getattr(self.fn, "__name__", None) or type(self.fn).__name__,
            module=module,
            gates=tuple(self.gates),
            replay=replay_graph(module, self.gates),
            shape_reads=tuple(self.shape_reads),
            inputs=tuple(self.inputs),
            output_spec=spec,
            environment=self.environment,
            bind=compile_bind(self.free_places, expressions, scope),
            samples=self.samples,
            free_places=tuple(self.free_places),
            python_effects=tuple(self.effects),
            grad_mode=self.entry_grad,
            executed=self.execute,
            source=source,
            source_line=line,
            source_file=file,
        )

    def _call(self) -> Any:
        """Run the user's function under both modes. Frames above this one are not the user's."""
        args, kwargs = self._sample_arguments()
        with self.watcher, self:
            return self.fn(*args, **kwargs)

    def _sample_arguments(self) -> tuple[tuple, dict]:
        if self.execute:
            return self.args, self.kwargs
        from ..specialize.structure import children, rebuild_container

        def stand_in(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                symbol = self.symbols.get(value)
                proxy = Proxy.make(TensorMeta.of(value))
                self.symbols.set(proxy, symbol, pin=True)
                return proxy
            parts = children(value)
            return value if parts is None else rebuild_container(value, [stand_in(part) for _, _, part in parts])

        return tuple(map(stand_in, self.args)), {key: stand_in(value) for key, value in self.kwargs.items()}

    def _make_placeholders(self, leaves: list[Any]) -> list[str]:
        expressions = []
        for leaf in leaves:
            if not isinstance(leaf.value, torch.Tensor):
                continue
            _check_supported(leaf.value, leaf.path)
            node = self._placeholder(leaf.path, leaf.value, is_free=False)
            if self._first_argument is None:
                self._first_argument = node
            expressions.append(leaf.expression)
        return expressions

    def _placeholder(self, path: str, tensor: torch.Tensor, *, is_free: bool) -> Node:
        meta = TensorMeta.of(tensor)
        node = self.graph.placeholder(_node_name(path), val=meta)
        record = Input(node.name, path, is_free, meta)
        if is_free:
            self.inputs.insert(len(self.free_places), record)
            self.samples.insert(len(self.free_places), tensor)
        else:
            self.inputs.append(record)
            self.samples.append(tensor)
        if self.symbols.get(tensor) is None:  # the same tensor passed twice: the first placeholder stands for both
            self.symbols.set(tensor, Symbol(node, (), tensor.requires_grad, is_input=True), pin=True)
        if tensor.layout is torch.strided:
            self.watcher.protect(tensor)
        return node

    def _check_after(self, random_state: RandomState) -> None:
        if self.caught is not None:
            error, where = self.caught
            raise CaptureError(
                f"the function caught an exception of an operation ({type(error).__name__}: {error}) and went on; whether "
                "it is raised depends on the inputs, which a graph cannot express",
                where=where,
                remedy="test for the condition with an operation instead of try/except",
            )
        self.watcher.check_random_state()
        drawn = random_state.python_changed()
        if drawn is not None:
            random_state.restore_python()
            raise CaptureError(
                f"the function draws from {drawn}; the number drawn while tracing would be used for ever",
                remedy="draw with torch.rand, or draw outside and pass the number as an argument",
            )

    def _finish(self, result: Any) -> Any:
        flat: list[Node] = []
        positions: dict[Node, int] = {}

        def place(tensor: torch.Tensor) -> int:
            node = self._node_of(tensor, None)
            if node not in positions:
                positions[node] = len(flat)
                flat.append(node)
            return positions[node]

        formatted = any("text" in effect.what for effect in self.effects)
        known = {id(value) for value in (self.fn, getattr(self.fn, "__self__", None), *_objects(self.args, self.kwargs))}
        spec = output_specification(result, place, known, formatted)
        self.graph.set_output(flat[0] if isinstance(result, torch.Tensor) else tuple(flat))
        self.graph.check()
        return spec

    # -- one call ---------------------------------------------------------------------------------------------------

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if func is torch._C._set_grad_enabled:
            return func(*args, **kwargs)
        self.frame = Frame(Tracer._call.__code__)
        try:
            return self._intercept(func, args, kwargs)
        except StaxError as error:
            if error.where is None and self.frame.location is not None:
                raise type(error)(error.what, where=self.frame.location, remedy=error.remedy) from None
            raise
        except Exception as error:
            self.caught = (error, self.frame.location)
            raise

    def _intercept(self, func: Any, args: tuple, kwargs: dict) -> Any:
        self.caught_is_gone()
        access = property_access(func)
        if access is not None:
            return self._property(func, *access, args)
        name = tensor_methods().get(func) if isinstance(func, _HASHABLE) else None
        if name is None:
            reason = classify.refused_function(func)
            if reason:
                raise CaptureError(f"{_called(func)} {reason[0]}", remedy=reason[1])
            name = getattr(func, "__name__", "")
        elif name in classify.REFUSED:
            what, remedy = classify.REFUSED[name]
            raise CaptureError(f"Tensor.{name} {what}", remedy=remedy)
        if name in classify.GATE_METHODS and args and isinstance(args[0], torch.Tensor):
            return self._ask(args[0], classify.GATE_METHODS[name])
        if name in classify.METADATA_CALLS or (name == "type" and len(args) == 1 and not kwargs):
            return self._metadata(func, name, args, kwargs)
        if name in classify.FORMATTING:
            self._needs_value(args[0])
            self.effects.append(PythonEffect("a tensor was turned into text (print, f-string, repr)", self.frame.location))
            return self._run(func, args, kwargs, CallFacts(), torch.is_grad_enabled())
        if name == "__deepcopy__":
            func, args = torch.Tensor.clone, args[:1]
        if name == "requires_grad_":
            return self._set_requires_grad(args[0], *args[1:], **kwargs)
        return self._record(func, name, args, kwargs)

    def caught_is_gone(self) -> None:
        """Another call after an exception: the function has caught it."""
        if self.caught is not None:
            self._check_after_exception()

    def _check_after_exception(self) -> None:
        error, where = self.caught
        self.caught = None
        raise CaptureError(
            f"the function caught an exception of an operation ({type(error).__name__}: {error}) and went on; whether it is "
            "raised depends on the inputs, which a graph cannot express",
            where=where,
            remedy="test for the condition with an operation instead of try/except",
        )

    def _property(self, func: Any, verb: str, name: str, args: tuple) -> Any:
        tensor = args[0]
        if verb == "set" and name == "requires_grad":
            self._set_requires_grad(tensor, args[1])
            return None
        if verb != "get":
            raise CaptureError(
                f"assigning to Tensor.{name} rebinds a tensor's contents behind its name",
                remedy="use copy_() to change values, or a new variable",
            )
        if name in classify.METADATA_PROPERTIES:
            return self._metadata(func, name, args, {})
        if name in classify.TENSOR_PROPERTIES:
            return self._record(func, name, args, {})
        symbol = self._symbol(tensor)
        if name == "requires_grad":
            return symbol.requires_grad
        if name == "is_leaf":
            return self._record(func, name, args, {}) if symbol.is_input else not symbol.requires_grad
        if name == "grad_fn" and not (symbol.requires_grad and (not symbol.is_input or not tensor.is_leaf)):
            return None
        what, remedy = classify.REFUSED.get(name, ("reads state that a graph does not have", classify._DATA_REMEDY))
        raise CaptureError(f"Tensor.{name} {what}", remedy=remedy)

    def _set_requires_grad(self, tensor: torch.Tensor, value: bool = True, requires_grad: bool | None = None) -> Any:
        value = value if requires_grad is None else requires_grad
        symbol = self._symbol(tensor)
        if symbol.requires_grad == value:
            return tensor
        raise CaptureError(
            "requires_grad changes inside the function", remedy="set requires_grad before the call, or use detach()"
        )

    def _metadata(self, func: Any, name: str, args: tuple, kwargs: dict) -> Any:
        for value in args:
            if isinstance(value, Proxy) and value.known is None:
                raise self._symbolic(f"{name} of an intermediate value")
        value = func(*args, **kwargs)
        if args and isinstance(args[0], torch.Tensor) and name in classify.SHAPE_ATTRIBUTES:
            self.shape_reads.append(ShapeRead(self._node_of(args[0]), name, value, self.frame.location))
        return value

    def _ask(self, tensor: torch.Tensor, kind: str) -> Any:
        """A data gate: Python wants a plain value."""
        self._needs_value(tensor)
        value = self._run(KINDS[kind], (tensor,), {}, CallFacts(), torch.is_grad_enabled())
        self.gates.append(DataGate(self._node_of(tensor), kind, value, self.frame.location))
        return value

    def _needs_value(self, tensor: Any) -> None:
        if isinstance(tensor, Proxy):
            raise self._symbolic("the data of a tensor")

    def _symbolic(self, what: str) -> CaptureError:
        return CaptureError(
            f"Python code needs {what}, which purely symbolic tracing does not know",
            remedy="trace with execute=True: the function then runs on the sample, and the answer becomes a guard",
        )

    def _record(self, func: Any, name: str, args: tuple, kwargs: dict) -> Any:
        """An operation: append a node, run it on the sample, and remember which tensors it made."""
        tensors = _tensors_in((args, kwargs))
        symbols = [self._symbol(tensor) for tensor in tensors]
        grad = torch.is_grad_enabled()
        needs_grad = any(symbol.requires_grad for symbol in symbols)
        if needs_grad and grad and not self.entry_grad:
            raise CaptureError(
                "gradient recording is switched on inside the function", remedy="call the compiled function with it on"
            )
        symbolic = not self.execute and (bool(tensors) or True)
        facts = CallFacts()
        if symbolic and not tensors:
            value = self._run(func, args, kwargs, facts, grad)
            symbolic = _contains_tensor(value)
            if not symbolic:
                return value
            value = Proxy.make(describe_value(value)) if isinstance(value, torch.Tensor) else value
        elif symbolic:
            value = Proxy.make(None)
        else:
            value = self._run(func, args, kwargs, facts, grad)
        if not tensors and not _contains_tensor(value):
            return value  # a question about no tensor at all, such as torch.promote_types
        op, target, args, kwargs = spell(func, args, kwargs, self.frame)
        detach = needs_grad and self.entry_grad and not grad
        node_of = (lambda t: self._detached_node(t)) if detach else self._node_of
        autocast = _autocast_state()
        args, kwargs = _map_tensors(args, node_of), _map_tensors(kwargs, node_of)
        if autocast != self.entry_autocast:
            op, target, args = "call_function", call_with_autocast, (autocast, _callable(op, target), *args)
        node = self.graph.create(op, target, args, kwargs, location=self.frame.location, name=_call_name(func, name, target))
        node.meta.update(facts.as_meta())
        requires_grad = needs_grad and grad and name not in classify.NON_DIFFERENTIABLE
        if isinstance(value, Proxy) and value.known is None:
            node.meta["aliases"] = True  # unknown without a value
            self.symbols.set(value, Symbol(node, (), requires_grad), pin=True)
            return value
        node.meta["val"] = self._describe(value, requires_grad)
        if _shares_storage(value, tensors):
            node.meta["aliases"] = True
        self._remember(value, node, (), requires_grad, facts)
        if facts.mutates:
            for tensor, symbol in zip(tensors, symbols, strict=True):
                symbol.requires_grad = symbol.requires_grad or (requires_grad and tensor.is_floating_point())
        if _contains_tensor(value):
            if facts.dynamic_shape or facts.reads_data:
                self.gates.append(DataGate(node, "shape", KINDS["shape"](value), self.frame.location))
        elif value is not None:
            self._check_plain(func, value)
            self.gates.append(DataGate(node, "value", value, self.frame.location))
        elif not facts.mutates:
            raise CaptureError(f"{_called(func)} returns nothing and changes no tensor: its effect cannot be recorded")
        return value

    def _run(self, func: Any, args: tuple, kwargs: dict, facts: CallFacts, grad: bool) -> Any:
        watcher = self.watcher
        watcher.facts, watcher.inside, watcher.grad = facts, True, grad
        inference = torch.is_inference_mode_enabled()
        try:
            if inference:
                with torch.inference_mode(False), torch.no_grad():
                    return func(*args, **kwargs)
            torch._C._set_grad_enabled(False)
            return func(*args, **kwargs)
        finally:
            watcher.inside = False
            if not inference:
                torch._C._set_grad_enabled(grad)

    # -- tensors and their symbols ----------------------------------------------------------------------------------

    def _symbol(self, tensor: torch.Tensor) -> Symbol:
        symbol = self.symbols.get(tensor)
        if symbol is not None:
            if not symbol.is_input and tensor.grad_fn is not None:
                raise CaptureError(
                    "a custom torch.autograd.Function would lose its backward in the graph",
                    remedy="call the compiled function under torch.no_grad(), or keep the custom function outside",
                )
            return symbol
        found = self._free_by_id.get(id(tensor))
        if found is None:
            raise CaptureError(
                f"the function uses a tensor ({describe_value(tensor)}) that is no argument and not reachable through its "
                "globals, closure or module attributes, so that later calls could not fetch it",
                remedy="pass the tensor as an argument; build new ones with torch.tensor rather than torch.Tensor or "
                "torch.from_numpy",
            )
        place, _ = found
        _check_supported(tensor, place.path)
        if self._first_argument is None and len(self.graph):
            self._first_argument = self.graph.nodes[0]
        if self._first_argument is not None:
            with self.graph.inserting_before(self._first_argument):
                node = self._placeholder(place.path, tensor, is_free=True)
        else:
            node = self._placeholder(place.path, tensor, is_free=True)
        self.free_places.append(place)
        return self.symbols.get(tensor) or Symbol(node)

    def _node_of(self, tensor: torch.Tensor, frame: Any = None) -> Node:
        symbol = self._symbol(tensor)
        if symbol.path:
            import operator

            node, value = symbol.node, symbol.node.val
            for index in symbol.path:
                value = value[index]
                node = self.graph.call_function(operator.getitem, (node, index), location=symbol.node.location, val=value)
            symbol.node, symbol.path = node, ()
        return symbol.node

    def _detached_node(self, tensor: torch.Tensor) -> Node:
        """The value cut off from gradient recording: how an operation under ``no_grad`` sees it."""
        node = self._node_of(tensor)
        if not self._symbol(tensor).requires_grad:
            return node
        if node not in self.detached:
            meta = node.val
            self.detached[node] = self.graph.call_method(
                "detach", (node,), location=self.frame.location, val=_without_grad(meta)
            )
        return self.detached[node]

    def _remember(self, value: Any, node: Node, path: tuple[int, ...], requires_grad: bool, facts: CallFacts) -> None:
        if isinstance(value, torch.Tensor):
            known = self.symbols.get(value)
            if known is None and id(value) in self._free_by_id and self._free_by_id[id(value)][1] is value:
                known = self._symbol(value)
            differentiable = value.is_floating_point() or value.is_complex()
            if known is None:
                self.symbols.set(value, Symbol(node, path, (requires_grad and differentiable) or value.requires_grad))
            elif facts.mutates:
                # The call changed this tensor and returned it: from here on its name means the changed value.
                known.node, known.path = node, path
        elif isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
            for index, part in enumerate(value):
                self._remember(part, node, (*path, index), requires_grad, facts)

    def _describe(self, value: Any, requires_grad: bool) -> Any:
        described = describe_value(value)
        return _with_grad(described) if requires_grad else described

    def _check_plain(self, func: Any, value: Any) -> None:
        if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
            for part in value:
                self._check_plain(func, part)
        elif not isinstance(value, _PLAIN):
            raise CaptureError(
                f"{_called(func)} returns a {type(value).__name__}, which a graph cannot hold", remedy=classify._DATA_REMEDY
            )


_HASHABLE = (type(torch.Tensor.add), type(lambda: None), type(torch.Tensor.__getitem__), type(torch.add))


def call_with_autocast(state: tuple, func: Any, *args: Any, **kwargs: Any) -> Any:
    """Run ``func`` under the autocast state that was in force where the user called it."""
    device_type, enabled, dtype = state
    with torch.autocast(device_type, dtype=dtype, enabled=enabled):
        return func(*args, **kwargs)


def _autocast_state() -> tuple | None:
    if not torch._C._is_any_autocast_enabled():
        return None
    for device_type in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device_type):
            return device_type, True, torch.get_autocast_dtype(device_type)
    return None


def _callable(op: str, target: Any) -> Any:
    return target if op == "call_function" else getattr(torch.Tensor, target)


def _check_supported(tensor: torch.Tensor, path: str) -> None:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        raise CaptureError(
            f"{path} is a tensor subclass ({type(tensor).__name__}), whose behaviour a graph of plain tensors cannot keep",
            remedy="pass a plain torch.Tensor",
        )
    if tensor.layout is not torch.strided:
        raise CaptureError(f"{path} has layout {tensor.layout}", remedy="pass a dense tensor (x.to_dense())")


def _call_name(func: Any, name: str, target: Any) -> str | None:
    if target is builtins.getattr:
        return name
    if target is call_with_autocast:
        return name.strip("_") or None
    return None


def _called(func: Any) -> str:
    from .graph import target_name

    return target_name(func)


def _node_name(path: str) -> str:
    import re

    return re.sub(r"\W+", "_", path.removeprefix("self.")).strip("_") or "value"


def _tensors_in(argument: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    _map_tensors(argument, lambda tensor: found.append(tensor) or tensor)
    return found


def _map_tensors(argument: Any, change: Any) -> Any:
    if isinstance(argument, torch.Tensor):
        return change(argument)
    if isinstance(argument, torch.Size):
        return argument
    if isinstance(argument, tuple):
        parts = [_map_tensors(a, change) for a in argument]
        return type(argument)(*parts) if hasattr(argument, "_fields") else tuple(parts)
    if isinstance(argument, list):
        return [_map_tensors(a, change) for a in argument]
    if isinstance(argument, dict):
        return {key: _map_tensors(value, change) for key, value in argument.items()}
    if isinstance(argument, slice):
        return slice(*(_map_tensors(a, change) for a in (argument.start, argument.stop, argument.step)))
    return argument


def _contains_tensor(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    return isinstance(value, (tuple, list)) and any(map(_contains_tensor, value))


def _shares_storage(value: Any, tensors: list[torch.Tensor]) -> bool:
    """Whether a result is a view of (or the same tensor as) an argument."""
    keys = {storage_key(tensor) for tensor in tensors if tensor.layout is torch.strided}
    made = [tensor for tensor in _tensors_in(value) if tensor.layout is torch.strided]
    return any(storage_key(tensor) in keys for tensor in made)


def _with_grad(meta: Any) -> Any:
    import dataclasses

    if isinstance(meta, TensorMeta):
        return dataclasses.replace(meta, requires_grad=meta.dtype.is_floating_point or meta.dtype.is_complex)
    return type(meta)(map(_with_grad, meta)) if isinstance(meta, (tuple, list)) and type(meta) in (tuple, list) else meta


def _without_grad(meta: Any) -> Any:
    import dataclasses

    return dataclasses.replace(meta, requires_grad=False) if isinstance(meta, TensorMeta) else meta


def _objects(args: tuple, kwargs: dict) -> list[Any]:
    return [leaf.value for leaf in argument_leaves(args, kwargs, str)]


def _source_of(fn: Any) -> tuple[str, int, str]:
    target = fn
    while hasattr(target, "func") and not inspect.isfunction(target):
        target = target.func
    if isinstance(target, torch.nn.Module):
        target = type(target).forward
    try:
        lines, line = inspect.getsourcelines(target)
        return "".join(lines), line, inspect.getsourcefile(target) or ""
    except (OSError, TypeError):
        return "", 1, ""


__all__ = ["Tracer", "active_tracer", "map_nodes", "trace"]
