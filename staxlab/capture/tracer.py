"""The tracer (Sections 3.2 and 3.3): run the function on a sample, and write down what it does.

Tracing here is *hybrid*. Every call that PyTorch dispatches reaches :meth:`Tracer.__torch_function__`, which appends a
node to the graph **and** runs the call on the sample. Control flow therefore just happens: loops unroll, calls inline
(submodules too), and of a branch only the side taken is recorded. Three kinds of calls are told apart (Table 3.2):

* an operation: a node; its value on the sample is described in ``node.meta["val"]``;
* a question about metadata (``x.shape``, ``len(x)``, ``x.dtype``): answered at once and noted as a :class:`ShapeRead`;
* a question about data (``if x.sum() > 0``, ``int(x.max())``): answered from the sample and noted as a
  :class:`~staxlab.capture.gates.DataGate`, which later calls have to answer in the same way.

The sample runs with gradient recording off; whether a value *would* require grad is tracked beside it
(:mod:`.autograd`). An operation under ``no_grad`` on a value that requires grad is recorded on ``value.detach()``, so
that no node depends on a mode; only writes and views keep theirs.

What a graph cannot express ends in a :class:`~staxlab.errors.CaptureError` that names the user's line. An exception of
the user's own code passes through with its own traceback.
"""

from __future__ import annotations

import builtins
import linecache
import operator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..errors import CaptureError, SideEffectWarning, StaxError, SubscriptError
from ..options import Options
from ..provenance import SourceLocation, user_location, warn_user
from ..shapes.integer import hinted, plain
from ..specialize.ambient import read_ambient, recording
from ..specialize.free_variables import Environment, Place, argument_roots, collect
from ..specialize.signature import aliasing
from ..specialize.structure import Parameters, argument_leaves, children, rebuild_container
from . import classify
from .autograd import APPLY, Books, Family, check_transforms, written
from .binding import argument_containers, compile_bind, output_specification
from .gates import KINDS, DataGate, replay_graph
from .graph import Graph, Node, TensorMeta, describe_value, target_name
from .isolation import RESEEDING, CallFacts, RandomState, Watcher, check_unchanged
from .module import GraphModule
from .outside import Outside, PythonEffect
from .proxy import Proxy, Symbol, SymbolTable
from .python_state import PythonState
from .record import Capture, Input, ShapeRead, uses_of_shapes
from .sizes import Declared, Sizes, usable
from .spelling import Frame, property_access, spell, tensor_methods
from .subscripts import subscript_error
from .values import (
    autocast_state,
    call_with_autocast,
    caught,
    check_argument,
    check_attributes,
    check_plain,
    check_result,
    check_supported,
    contains_tensor,
    explained,
    map_leaves,
    map_tensors,
    name_of,
    placeholder_name,
    shares_storage,
    source_of,
    symbolic,
    tensors_in,
    unknown_tensor,
    with_grad,
)

_HASHABLE = (type(torch.Tensor.add), type(lambda: None), type(torch.Tensor.__getitem__), type(torch.add))


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
    declared: dict[tuple[str, int], Declared] | None = None,
) -> Capture:
    """Record ``fn(*args, **kwargs)`` as a graph (Section 3).

    ``args`` and ``kwargs`` are the sample: real tensors (and any other values) of the call to specialize on. Their
    data, and the state of random number generators, are the same afterwards as before. ``execute=False`` records
    without running: shapes are known for inputs only, and control flow that depends on data is refused.

    With ``options.dynamic``, sizes are symbols (:mod:`.sizes`); ``declared`` says which, by path and dimension (None:
    all of 2 or more).

    Raises CaptureError, naming the user's line, where the function cannot be recorded; exceptions of ``fn`` itself pass
    through unchanged. Time and memory are those of one eager call plus tens of microseconds per operation.
    """
    symbolic_sizes = execute and options is not None and options.dynamic
    return Tracer(fn, tuple(args), dict(kwargs or {}), execute, symbolic_sizes, declared).run()


class Tracer(TorchFunctionMode):
    """One recording. While it is active, every PyTorch call of this thread passes through it."""

    def __init__(
        self, fn: Any, args: tuple, kwargs: dict, execute: bool, symbolic_sizes: bool = False, declared: Any = None
    ):
        super().__init__()
        self.fn, self.args, self.kwargs, self.execute = fn, args, kwargs, execute
        self.graph = Graph()
        self.sizes = Sizes(self.graph, self._where, declared) if symbolic_sizes else None
        self.symbols = SymbolTable()
        self.gates: list[DataGate] = []
        self.shape_reads: list[ShapeRead] = []
        self.kind_reads: dict[Node, None] = {}
        self.effects: list[PythonEffect] = []
        self.inputs: list[Input] = []
        self.samples: list[torch.Tensor] = []
        self.free_places: list[Place] = []
        self.watcher = Watcher(lambda: Frame(Tracer._call.__code__).location)
        self.outside = Outside()
        self.books = Books(self.symbols.get, lambda: Frame(Tracer._call.__code__).location)
        self.outside.calls[APPLY] = self.books.custom_function
        self.ambient = read_ambient()
        self.autocast = autocast_state()
        self.detached: dict[Node, Node] = {}
        self.caught: tuple[Exception, SourceLocation | None] | None = None
        self.refusal: StaxError | None = None
        self.frame, self.inside = None, False  # the user's frame, and whether a call of PyTorch's is being looked at
        self.environment = Environment()
        self._free_by_id: dict[int, tuple[Place, torch.Tensor]] = {}
        self._first_argument: Node | None = None

    # -- the recording as a whole -----------------------------------------------------------------------------------

    def run(self) -> Capture:
        if active_tracer() is not None:
            raise CaptureError("a trace is already being recorded on this thread")
        source, line, file = source_of(self.fn)
        scope, names = {}, Parameters.of(self.fn).name
        leaves = list(argument_leaves(self.args, self.kwargs, names, scope))
        roots = argument_roots(self.args, self.kwargs, names)
        self.environment = collect(self.fn, [(path, root) for path, _, root in roots])
        self.sizes = usable(self.sizes, self.environment)
        for place in self.environment.tensors:
            self._free_by_id.setdefault(id(tensor := place.read()), (place, tensor))
        random_state = RandomState()
        python_state = PythonState(self.environment, (self.args, self.kwargs), names)
        self.watcher.start(random_state, may_reseed=not RESEEDING.isdisjoint(self.environment.names))
        recording.tracer = self
        undo, samples = True, self.samples
        try:
            if self.environment.iterators:
                raise CaptureError(
                    f"the function reads from the iterator {self.environment.iterators[0]}, which moves at each call",
                    remedy="take the next item outside and pass it as an argument",
                )
            for what, remedy in self.environment.refused:
                raise CaptureError(f"the function {what}", remedy=remedy)
            expressions = self._make_placeholders(leaves)
            with self.outside.watched():
                result = self._run_function()
            self._check_after(random_state, python_state)
            spec = self._finish(result)
            self.effects += self.outside.effects + python_state.effects()
        except SubscriptError:
            undo = False
            raise
        except StaxError as error:
            python_state.restore()
            random_state.restore_python()
            if error.where is None and file:
                text = linecache.getline(file, line).strip()
                raise type(error)(error.what, where=SourceLocation(file, line, text), remedy=error.remedy) from None
            raise
        except BaseException:
            undo = False  # the user's own exception: what the function did before it stands, as without a compiler
            raise
        finally:
            recording.tracer = None
            random_state.given = [(generator, first) for generator, first, _ in self.watcher.generators.values()]
            draws = self.watcher.has_drawn or bool(random_state.given)
            if undo:
                self.watcher.restore()
                if self.watcher.has_drawn or self.watcher.moved:
                    random_state.restore()
            self._forget()
        if self.effects:
            seen = "; ".join(map(str, self.effects[:3]))
            what = "has Python side effects, which happen only while it is traced"
            warn_user(f"{name_of(self.fn)!r} {what}: {seen}", SideEffectWarning)
        module = GraphModule(self.graph)
        if self.sizes is not None:
            uses = uses_of_shapes(self.graph, self.shape_reads, self.kind_reads, self.environment)
            self.gates = self.sizes.gates(self.gates, uses)
        return Capture(
            name=name_of(self.fn),
            module=module,
            gates=tuple(self.gates),
            replay=replay_graph(module, self.gates),
            shape_reads=tuple(self.shape_reads),
            kind_reads=tuple(self.kind_reads),
            inputs=tuple(self.inputs),
            output_spec=spec,
            environment=self.environment,
            bind=compile_bind(self.free_places, expressions, scope),
            samples=samples,
            random_state=random_state if draws else None,
            free_places=tuple(self.free_places),
            python_effects=tuple(self.effects),
            shape_guard=self.sizes.guard() if self.sizes else None,
            grad_mode=self.ambient.grad_mode,
            executed=self.execute,
            source=source,
            source_line=line,
            source_file=file,
        )

    def _run_function(self) -> Any:
        try:
            return self._call()
        except StaxError:
            raise
        except Exception as error:
            refusal = self.refusal or self.watcher.refusal or self.books.refusal
            if refusal is None:
                raise
            raise explained(refusal, error) from error

    def _call(self) -> Any:
        """Run the user's function under both modes. Frames above this one are not the user's."""
        args, kwargs = self._sample_arguments()
        with self.watcher, self:
            return self.fn(*args, **kwargs)

    def _forget(self) -> None:
        """Let go of every tensor: the record alone decides how long the sample lives."""
        self.symbols.clear()
        self.watcher.forget()
        self.args, self.kwargs, self.samples = (), {}, []
        self._free_by_id.clear()

    def _sample_arguments(self) -> tuple[tuple, dict]:
        if self.execute:
            return self.args, self.kwargs

        def stand_in(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                proxy = Proxy.make(TensorMeta.of(value))
                self.symbols.set(proxy, self.symbols.get(value), pin=True)
                return proxy
            parts = children(value)
            return value if parts is None else rebuild_container(value, [stand_in(part) for _, _, part in parts])

        return tuple(map(stand_in, self.args)), {key: stand_in(value) for key, value in self.kwargs.items()}

    def _make_placeholders(self, leaves: list[Any]) -> list[str]:
        expressions = []
        for leaf in leaves:
            if isinstance(leaf.value, torch.Tensor):
                check_supported(leaf.value, leaf.path)
                check_attributes(leaf.value, leaf.path, self.environment.named_by_user)
                node = self._placeholder(leaf.path, leaf.value, is_free=False)
                self._first_argument = self._first_argument or node
                expressions.append(leaf.expression)
        return expressions

    def _placeholder(self, path: str, tensor: torch.Tensor, *, is_free: bool) -> Node:
        meta = TensorMeta.of(tensor)
        node = self.graph.placeholder(placeholder_name(path), val=meta)
        position = len(self.free_places) if is_free else len(self.inputs)
        self.inputs.insert(position, Input(node.name, path, is_free, meta))
        if self.sizes is not None:
            self.sizes.add_input(node, meta, path, is_free=is_free)
        self.samples.insert(position, tensor)
        if self.symbols.get(tensor) is None:  # the same tensor passed twice: the first placeholder stands for both
            self.books.trains |= tensor.requires_grad and self.ambient.grad_mode
            self.symbols.set(tensor, Symbol(node, (), Family(tensor.requires_grad), is_input=True), pin=True)
        self.watcher.protect(tensor)
        return node

    def _check_after(self, random_state: RandomState, python_state: PythonState) -> None:
        if self.refusal is not None:
            raise self.refusal  # the user's code caught our refusal and went on
        if refusal := self.watcher.refusal or self.outside.refusal or self.books.refusal:
            raise refusal
        self._check_not_caught()
        self.watcher.check_random_state()
        check_unchanged(random_state, python_state, self.ambient)

    def _check_not_caught(self) -> None:
        """An exception of an operation must reach the caller: if the function goes on after it, it has been caught."""
        if self.caught is None:
            return
        (error, where), self.caught = self.caught, None
        raise caught(error, where)

    def _finish(self, result: Any) -> Any:
        flat: dict[Node, int] = {}
        returned: list[Family] = []

        def position(tensor: torch.Tensor) -> int:
            returned.append(self._symbol(tensor).family)
            return flat.setdefault(self._node_of(tensor), len(flat))

        formatted = any("text" in effect.what for effect in self.effects)
        given = [leaf.value for leaf in argument_leaves(self.args, self.kwargs, str)]
        known = {id(value) for value in (self.fn, getattr(self.fn, "__self__", None), *given)}
        containers = argument_containers(self.args, self.kwargs) if self.execute else {}
        spec = output_specification(result, position, known, formatted, containers)
        self.graph.set_output(next(iter(flat)) if isinstance(result, torch.Tensor) else tuple(flat))
        placeholders = self.graph.placeholders
        for first, second, _ in aliasing(self.samples):  # part of the key, so it holds at every call
            placeholders[second].meta["overlaps"] = placeholders[first].name
        self.books.restore_modes(self.graph, returned)
        self.graph.check()
        return spec

    # -- one call ---------------------------------------------------------------------------------------------------

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if func is torch._C._set_grad_enabled:
            return func(*args, **kwargs)
        if self.refusal is not None or self.books.refusal is not None:
            raise self.refusal or self.books.refusal
        self.outside.pause()
        self.frame, self.inside = Frame(Tracer._call.__code__), True
        try:
            self._check_not_caught()
            check_transforms()
            return self._intercept(func, args, kwargs)
        except SubscriptError:
            raise  # what eager execution raises, too
        except StaxError as error:
            if error.where is None and self.frame.location is not None:
                error = type(error)(error.what, where=self.frame.location, remedy=error.remedy)
            self.refusal = error
            raise error from None
        finally:
            self.inside = False
            self.outside.resume()

    def _intercept(self, func: Any, args: tuple, kwargs: dict) -> Any:
        access = property_access(func)
        if access is not None:
            return self._property(func, *access, args)
        name = tensor_methods().get(func) if isinstance(func, _HASHABLE) else None
        if name is None:
            reason = classify.refused_function(func)
            if reason:
                raise CaptureError(f"{target_name(func)} {reason[0]}", remedy=reason[1])
            name = getattr(func, "__name__", "")
        elif name in classify.REFUSED:
            what, remedy = classify.REFUSED[name]
            raise CaptureError(f"Tensor.{name} {what}", remedy=remedy)
        if name in classify.GATE_METHODS and args and isinstance(args[0], torch.Tensor):
            return self._ask(args[0], classify.GATE_METHODS[name])
        if name in classify.METADATA_CALLS or (name == "type" and len(args) == 1 and not kwargs):
            return self._metadata(func, name, args, kwargs)
        if name in classify.FORMATTING:
            if isinstance(args[0], Proxy):
                raise symbolic("the data of a tensor")
            self.effects.append(
                PythonEffect("a tensor was turned into text (print, f-string, repr)", self.frame.location)
            )
            return self._run(func, args, kwargs, CallFacts())
        if name == "__deepcopy__":
            func, args = torch.Tensor.clone, args[:1]
        if name in ("requires_grad_", "detach_"):
            return self._set_requires_grad(args[0], *(args[1:] if name == "requires_grad_" else (False,)), **kwargs)
        if name == "is_inference" and self._symbol(args[0]).family.inference:
            return True
        return self._record(func, name, args, kwargs)

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
        if name == "grad_fn" and (not symbol.requires_grad or (symbol.is_input and tensor.is_leaf)):
            return None
        what, remedy = classify.REFUSED.get(name, ("reads state that a graph does not have", classify.DATA_REMEDY))
        raise CaptureError(f"Tensor.{name} {what}", remedy=remedy)

    def _set_requires_grad(self, tensor: torch.Tensor, requires_grad: bool = True) -> torch.Tensor:
        if self._symbol(tensor).requires_grad == requires_grad:
            return tensor
        raise CaptureError(
            "requires_grad changes inside the function", remedy="set requires_grad before the call, or use detach()"
        )

    def _metadata(self, func: Any, name: str, args: tuple, kwargs: dict) -> Any:
        if any(isinstance(value, Proxy) and value.known is None for value in args):
            raise symbolic(f"{name} of an intermediate value")
        tensors = tensors_in((args, kwargs))
        for symbol in filter(None, map(self.symbols.get, tensors)):
            self.kind_reads[symbol.node] = None
        nodes = [self._node_of(tensor) for tensor in tensors] if name in classify.SHAPE_ATTRIBUTES else []
        answer = self.sizes.answer(name, args[1:], kwargs, nodes) if self.sizes is not None else None
        if answer is not None:
            return answer
        value: Any = "an exception"  # an answer too, if the user's code catches it
        try:
            value = func(*args, **kwargs)
        finally:
            self.shape_reads += [ShapeRead(node, name, value, self.frame.location) for node in nodes]
        return value

    def _where(self) -> SourceLocation | None:
        """The user's line: of the call being looked at, or of the Python code that compares sizes between calls."""
        return self.frame.location if self.inside else user_location()

    def _ask(self, tensor: torch.Tensor, kind: str) -> Any:
        """A data gate: Python wants a plain value."""
        if isinstance(tensor, Proxy):
            raise symbolic("the data of a tensor")
        value = self._run(KINDS[kind], (tensor,), {}, CallFacts())
        self.gates.append(DataGate(self._node_of(tensor), kind, value, self.frame.location))
        return value

    def _record(self, func: Any, name: str, args: tuple, kwargs: dict) -> Any:
        """An operation: append a node, run it on the sample, and remember which tensors it made."""
        tensors = tensors_in((args, kwargs))
        symbols = [self._symbol(tensor) for tensor in tensors]
        grad, needs_grad = torch.is_grad_enabled(), any(symbol.requires_grad for symbol in symbols)
        if needs_grad and grad and not self.ambient.grad_mode:
            raise CaptureError(
                "gradient recording is switched on inside the function", remedy="call the compiled function with it on"
            )
        if torch.get_default_dtype() is not self.ambient.default_dtype:
            raise CaptureError(
                "the default dtype changes inside the function", remedy="give the dtype where a tensor is made"
            )
        map_leaves((args, kwargs), check_argument)
        facts = CallFacts()
        sample = (args, kwargs) if self.sizes is None else map_leaves((args, kwargs), hinted)
        value = self._value(func, *sample, tensors, facts)
        if value is NotImplemented or (not tensors and not contains_tensor(value)):
            map_leaves((args, kwargs), plain)  # an answer about sizes (torch.sym_max) is of these alone
            return value  # `x == None`, or a question about no tensor at all, such as torch.promote_types
        check_result(func, value)
        op, target, args, kwargs = spell(func, args, kwargs, self.frame)
        aliases = shares_storage(value, tensors)
        recording_off = self.ambient.grad_mode and not grad
        detach = needs_grad and recording_off and not (facts.mutates or aliases)
        node_of = self._detached_node if detach else self._node_of
        args, kwargs = map_tensors(args, node_of), map_tensors(kwargs, node_of)
        if self.sizes is not None:
            args, kwargs = map_leaves((args, kwargs), self.sizes.as_argument)
        title = name if target is builtins.getattr else None
        autocast = autocast_state()
        if autocast != self.autocast:
            called = target if op == "call_function" else getattr(torch.Tensor, target)
            op, target, args, title = "call_function", call_with_autocast, (autocast, called, *args), name.strip("_")
        node = self.graph.create(op, target, args, kwargs, location=self.frame.location, name=title or None)
        node.meta.update(facts.as_meta())
        if recording_off:
            node.meta["recording_off"] = True
        if torch.is_inference_mode_enabled() and not self.ambient.inference_mode:
            node.meta["inference_mode"] = True
        requires_grad = needs_grad and grad and name not in classify.NON_DIFFERENTIABLE
        if requires_grad:
            self.books.check_saved_tensors_hooks()
        if isinstance(value, Proxy):
            if value.known is not None:
                node.meta["val"] = value.known
            node.meta["aliases"] = True  # unknown without a value
            self.symbols.set(value, Symbol(node, (), Family(requires_grad)), pin=True)
            return value
        if aliases:
            node.meta["aliases"] = True
        if facts.mutates:
            self.books.write(written(name, value, sample[0], tensors), requires_grad=requires_grad)
        self._remember(value, node, (), requires_grad, facts, name, tensors)
        if value is not None:
            node.meta["val"] = self.books.described(value)
        if contains_tensor(value):
            if facts.dynamic_shape or facts.reads_data:
                gate = DataGate(node, "shape", KINDS["shape"](value), self.frame.location)
                if self.sizes is None or facts.reads_data or not self.sizes.hold(gate):
                    self.gates.append(gate)
        elif value is not None:
            check_plain(func, value)
            self.gates.append(DataGate(node, "value", value, self.frame.location))
        elif not facts.mutates:
            raise CaptureError(f"{target_name(func)} returns nothing and changes no tensor, which no graph records")
        return value

    def _value(self, func: Any, args: tuple, kwargs: dict, tensors: list[torch.Tensor], facts: CallFacts) -> Any:
        """The call's result on the sample, or without a sample a stand-in for it."""
        if not self.execute and tensors:
            return Proxy.make(None)
        value = self._run(func, args, kwargs, facts)
        return Proxy.make(describe_value(value)) if not self.execute and isinstance(value, torch.Tensor) else value

    def _run(self, func: Any, args: tuple, kwargs: dict, facts: CallFacts) -> Any:
        """Execute on the sample with gradient recording off, under the eyes of the watcher."""
        watcher, grad = self.watcher, torch.is_grad_enabled()
        watcher.facts, watcher.inside, watcher.grad, watcher.arguments = facts, True, grad, tensors_in((args, kwargs))
        inference = torch.is_inference_mode_enabled() and not self.ambient.inference_mode
        try:
            if inference:  # entered inside the function: values made here may be used outside
                with torch.inference_mode(False), torch.no_grad():
                    return func(*args, **kwargs)
            torch._C._set_grad_enabled(False)
            return func(*args, **kwargs)
        except Exception as error:
            error = subscript_error(error, func, args, kwargs, self.frame.location)
            # A TypeError is decided by types alone, and `x == None` relies on being allowed to catch it.
            if isinstance(error, SubscriptError) or not isinstance(error, (StaxError, TypeError)):
                self.caught = (error, self.frame.location)
            raise error
        finally:
            watcher.inside = False
            if not inference:
                torch._C._set_grad_enabled(grad)

    # -- tensors and their symbols ----------------------------------------------------------------------------------

    def _symbol(self, tensor: torch.Tensor) -> Symbol:
        symbol = self.symbols.get(tensor)
        return self._lift(tensor) if symbol is None else symbol

    def _lift(self, tensor: torch.Tensor) -> Symbol:
        """A free tensor met for the first time becomes a leading placeholder (Section 2.5)."""
        place, found = self._free_by_id.get(id(tensor), (None, None))
        if place is None or found is not tensor:
            raise unknown_tensor(tensor)
        check_supported(tensor, place.path)
        if self._first_argument is None and len(self.graph) > len(self.free_places):
            self._first_argument = self.graph.nodes[len(self.free_places)]
        if self._first_argument is None:
            self._placeholder(place.path, tensor, is_free=True)
        else:
            with self.graph.inserting_before(self._first_argument):
                self._placeholder(place.path, tensor, is_free=True)
        self.free_places.append(place)
        return self.symbols.get(tensor)

    def _node_of(self, tensor: torch.Tensor) -> Node:
        """The node of a tensor; for an element of a multi-result operation, the ``getitem`` that takes it out."""
        symbol = self._symbol(tensor)
        if symbol.path:
            node, value = symbol.node, symbol.node.val
            for index in symbol.path:
                value = value[index]
                node = self.graph.call_function(
                    operator.getitem, (node, index), location=symbol.node.location, val=value
                )
            symbol.node, symbol.path = node, ()
        return symbol.node

    def _detached_node(self, tensor: torch.Tensor) -> Node:
        """The value cut off from gradient recording: how an operation under ``no_grad`` sees it."""
        node = self._node_of(tensor)
        if not self._symbol(tensor).requires_grad:
            return node
        if node not in self.detached:
            meta = with_grad(node.val, False)
            self.detached[node] = self.graph.call_method("detach", (node,), location=self.frame.location, val=meta)
            self.detached[node].meta["aliases"] = True
        return self.detached[node]

    def _remember(
        self, value: Any, node: Node, path: tuple[int, ...], requires_grad: bool, facts: CallFacts, *call: Any
    ) -> None:
        if isinstance(value, torch.Tensor):
            known = self.symbols.get(value)
            if known is None and self._free_by_id.get(id(value), (None, None))[1] is value:
                known = self._symbol(value)
            if known is None:
                requires_grad &= path[:1] == () or path[0] not in classify.NON_DIFFERENTIABLE_RESULTS.get(call[0], ())
                self.symbols.set(value, Symbol(node, path, self.books.family(value, node, requires_grad, *call)))
            elif facts.mutates:
                # The call changed this tensor and returned it: from here on its name means the changed value.
                known.node, known.path = node, path
        elif isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
            for index, part in enumerate(value):
                self._remember(part, node, (*path, index), requires_grad, facts, *call)
