"""The derivative of a ``score_mod``, as a loop body of its own (Section 9.10, reverse mode of Section 5.1).

The backward kernels have, for each score, the derivative of the loss by what ``score_mod`` returned, and need the one
by the score it was given, and by the elements of captured tensors that learn. Both come of one sweep over the body's
statements from the last to the first, with the chain rule of :mod:`.derivatives`; the sweep is recorded as a body, so
that it is simplified, printed, and replayed under any handler like every other.

The reverse body reads values of the forward body by number (``forward7``). So a kernel that has run the forward body in
the same tile shares them; what the sweep does not read is not computed for it.

What a captured tensor gets is no value but a *contribution*: add this number to that element. Many scores may
contribute to one element, and how to sum them up is the kernel's affair. It is told along which of ``b, h, q, kv`` the
subscript varies, and may sum over the rest of its tile first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..errors import CaptureError
from ..loops.body import Block, LoopBody, Statement
from ..loops.expressions import Expr, Symbol
from ..loops.formatting import body_lines
from ..loops.ops import OPERATIONS, Ops
from ..loops.semantics import Evaluator
from .clamping import ClampingRecorder
from .derivatives import CONSTANT_PIECES, DERIVATIVES, NOT_DIFFERENTIABLE, Algebra
from .tracing import SCORE, SUBSCRIPTS

UPSTREAM = "upstream"


@dataclass(frozen=True)
class Contribution:
    """Add ``value`` to element ``subscript`` (flat, counted from the first) of the gradient of captured tensor
    ``number`` of the modification. ``dims`` are those of ``b, h, q, kv`` that the subscript varies with: over the
    others the values may be summed up before. In a replay ``value`` and the symbols of ``subscript`` are the handler's,
    in the record a statement's number and the forward body's."""

    number: int
    subscript: Expr
    value: Any
    dims: tuple[str, ...]


@dataclass(frozen=True)
class AdjointBody:
    """``reverse`` yields the derivative by the score, from loads of ``upstream`` and of values of ``forward`` by
    number; ``contributions`` are what captured tensors that require grad get.

    The derivative of what no score belongs to, or a mask hides, is whatever comes of it, infinities and NaN included: a
    kernel selects by visibility *after* the sweep (a product with 0 is not enough). Derivatives are of ``dtype`` and
    are not rounded on the way, where autograd rounds those of half-precision values.
    """

    forward: LoopBody
    reverse: LoopBody
    contributions: tuple[Contribution, ...]
    dtype: torch.dtype

    def replay(
        self, ops: Ops, score: Any, upstream: Any | Callable[[Any], Any], first: int = 0
    ) -> tuple[Any, list[Contribution]]:
        """The handler's value of the derivative by the score, and contributions in its own terms.

        ``score`` is the handler's value of the score before modification, ``upstream`` of the derivative by the
        modified one, or a function from the modified score to that, called once between the two sweeps. ``first`` as
        for :meth:`.modification.Modification.replay`; a contribution's ``number`` does not count it.
        """
        from .modification import Given

        whole = callable(upstream)
        forward = self.forward if whole else _needed(self.forward, self._read_forward(), self._symbols())
        env, symbols = forward.replay_statements(Given(ops, {SCORE: score}, first))
        values = {f"forward{number}": env[number] for number in self._read_forward()}
        values[UPSTREAM] = upstream(env[self.forward.result]) if whole else upstream
        found, own = self.reverse.replay_statements(Given(ops, values, first))
        symbols = {**symbols, **own}
        made = [replace(c, subscript=c.subscript.substitute(symbols), value=found[c.value]) for c in self.contributions]
        return found[self.reverse.result], made

    def _read_forward(self) -> tuple[int, ...]:
        names = (access.buffer for access in self.reverse.reads())
        return tuple(sorted(int(name.removeprefix("forward")) for name in names if name.startswith("forward")))

    def _symbols(self) -> frozenset[Symbol]:
        return frozenset().union(*(c.subscript.symbols for c in self.contributions))

    def evaluate(
        self, captured: Iterable[torch.Tensor], score: torch.Tensor, upstream: torch.Tensor, *subscripts: Any
    ) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        """Over tensors: the derivative by the score, and whole gradients of captured tensors by number, in the shapes
        of the tensors. ``score``, ``upstream`` and the four ``subscripts`` broadcast; ``captured`` are all tensors of
        the modification."""
        from .modification import flat_storage_of

        tensors = list(captured)
        storages = {f"captured{n}": flat_storage_of(tensor) for n, tensor in enumerate(tensors)}
        places = dict(zip(SUBSCRIPTS, map(torch.as_tensor, subscripts), strict=True))
        evaluator = Evaluator(storages, places)
        shape = torch.broadcast_shapes(score.shape, upstream.shape, *(p.shape for p in places.values()))
        d_score, made = self.replay(evaluator, score, upstream)
        sums: dict[int, torch.Tensor] = {}
        for c in made:
            tensor = tensors[c.number]
            if c.number not in sums:
                flat = storages[f"captured{c.number}"]
                sums[c.number] = torch.zeros(flat.shape, dtype=self.dtype, device=flat.device)
            where = evaluator.subscript(c.subscript).to(tensor.device).expand(shape).reshape(-1)
            sums[c.number].index_add_(0, where, c.value.to(self.dtype).expand(shape).reshape(-1))
        return d_score.expand(shape), {
            number: flat.as_strided(tensors[number].shape, tensors[number].stride()) for number, flat in sums.items()
        }

    def format(self) -> str:
        """The reverse body, and where its contributions go."""
        lines = [f"derivative by the score, for one at {', '.join(SUBSCRIPTS)}:"]
        lines += [f"    {line.text}" for line in body_lines(self.reverse)]
        lines += [f"    yield tmp{self.reverse.result}"]
        for c in self.contributions:
            over = ", ".join(c.dims) or "nothing"
            lines.append(f"    add tmp{c.value} to captured{c.number}[{c.subscript}]  # varies with {over}")
        return "\n".join(lines)

    __str__ = format

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)


def adjoint_of(modification: Any) -> AdjointBody:
    """The adjoint of a traced ``score_mod``. CaptureError for an operation that PyTorch has no derivative of, on the
    way from the score or a tensor that requires grad to the result, and for a ``mask_mod``."""
    if modification.kind != "score":
        raise CaptureError(
            f"mask_mod {modification.name!r} has no derivative: it chooses, and computes nothing",
            where=modification.source,
            remedy="differentiate the score_mod",
        )
    for operator, location in modification.undifferentiable:
        raise _no_derivative(modification, operator, location)
    learns = {c.name: n for n, c in enumerate(modification.captured) if c.requires_grad and c.dtype.is_floating_point}
    return _Sweep(modification, learns).run()


def _no_derivative(modification: Any, operation: str, where: Any) -> CaptureError:
    return CaptureError(
        f"score_mod {modification.name!r} uses {operation}, whose derivative kernels do not have",
        where=where or modification.source,
        remedy="call attention under torch.no_grad(), or on tensors that do not require grad",
    )


class _ReverseRecorder(ClampingRecorder):
    """Records the sweep: subscripts are in range already."""

    def __init__(self, dtypes: dict[str, torch.dtype], number_of_symbols: int):
        super().__init__(dtypes)
        self.shared["symbols"] = number_of_symbols  # symbols of both bodies are told apart by their names


class _Sweep:
    """One differentiation in progress."""

    def __init__(self, modification: Any, learns: dict[str, int]):
        self.modification, self.body, self.learns = modification, modification.body, learns
        self.statements = {s.id: s for s in self.body.all_statements()}
        self.active = _active(self.body, learns)
        self.dims = _dependences(self.body)
        dtypes = {f"forward{s.id}": s.dtype for s in self.body.all_statements()}
        dtypes |= {c.name: c.dtype for c in modification.captured}
        dtypes[UPSTREAM] = modification.dtype
        count = sum(s.operation == "indirect" for s in self.statements.values())
        self.recorder = _ReverseRecorder(dtypes, count)
        self.constants: dict[int, float] = {}
        self.contributions: list[Contribution] = []

    def run(self) -> AdjointBody:
        recorder, dtype = self.recorder, self.modification.dtype
        pending: dict[int, Any] = {}
        if self.body.result in self.active:
            pending[self.body.result] = recorder.load(UPSTREAM, Expr.of(0))
        d_score = self.sweep(self.body.statements, pending, recorder, self.read)
        if d_score is None:
            d_score = recorder.constant(0.0, dtype)
        roots = [d_score.id, *(c.value for c in self.contributions)]
        symbols = frozenset().union(*(c.subscript.symbols for c in self.contributions))
        body = LoopBody(self.body.indices, (), tuple(recorder.scopes[0]), d_score.id)
        return AdjointBody(self.body, _needed(body, roots, symbols), tuple(self.contributions), dtype)

    def read(self, number: int) -> Any:
        """The value of a forward statement, in the reverse body."""
        statement = self.statements[number]
        if statement.operation == "constant":
            made = self.recorder.constant(statement.args[0], statement.dtype)
            if statement.dtype.is_floating_point:
                self.constants[made.id] = float(statement.args[0])
            return made
        return self.recorder.load(f"forward{number}", Expr.of(0))

    def sweep(
        self,
        statements: tuple[Statement, ...],
        pending: dict[int, Any],
        recorder: Any,
        read: Callable[[int], Any],
        condition: Any = None,
    ) -> Any:
        """Go through ``statements`` backwards. ``pending`` maps a statement to the sum of what has come to it so far.
        Returns the derivative by the score (None: none came to it). What comes to statements outside stays pending."""
        d_score = None
        for s in reversed(statements):
            g = pending.pop(s.id, None)
            if g is None or s.id not in self.active:
                continue
            tagged = recorder.tagged(s.origins)
            algebra = Algebra(tagged, s.dtype, self.constants)
            if s.operation == "load":
                if s.args[0] == SCORE:
                    d_score = g
                else:
                    self._contribute(s, g, tagged, condition)
            elif s.operation == "to_dtype":
                source = self.statements[s.args[0]]
                self._arrive(pending, source.id, tagged.to_dtype(g, source.dtype), tagged)
            elif s.operation == "masked":
                inside = self._masked(s, g, pending, tagged, read)
                if inside is not None:
                    d_score = inside if d_score is None else tagged.add(d_score, inside)
            elif s.operation not in CONSTANT_PIECES:
                parts = self._rule(s).rule(algebra, g, read(s.id), *(read(a) for a in s.args))
                for operand, part in zip(s.args, parts, strict=True):
                    if part is not None and operand in self.active:
                        self._arrive(pending, operand, part, tagged)
        return d_score

    def _rule(self, statement: Statement) -> Any:
        if statement.operation in NOT_DIFFERENTIABLE or statement.operation not in DERIVATIVES:
            where = next((n.location for n in self.modification.graph if n.id in statement.origins), None)
            raise _no_derivative(self.modification, statement.operation, where)
        return DERIVATIVES[statement.operation]

    @staticmethod
    def _arrive(pending: dict[int, Any], number: int, part: Any, ops: Any) -> None:
        pending[number] = ops.add(pending[number], part) if number in pending else part

    def _contribute(self, load: Statement, value: Any, ops: Any, condition: Any) -> None:
        number, subscript = self.learns[load.args[0]], load.args[1]
        dims = _dims_of(subscript, self.dims)
        if condition is not None:
            # Where the condition fails the value is 0, but the subscript may be anything: bring it into range.
            captured = self.modification.captured[number]
            reach = 1 + sum((n - 1) * s for n, s in zip(captured.shape, captured.strides, strict=True))
            if not subscript.bounds().within(0, reach - 1):
                subscript = ops.indirect(ops.index_value(subscript, torch.int64), Expr.of(reach))
        self.contributions.append(Contribution(number, subscript, value.id, dims))

    def _masked(self, s: Statement, g: Any, pending: dict[int, Any], ops: Any, read: Callable[[int], Any]) -> Any:
        """A block that counts only where a condition holds. Its statements are run again inside a block of the reverse
        body, once for each derivative that leaves it, since a block has one result."""
        condition, block, _ = s.args
        inner = {x.id for x in LoopBody((), (), block.statements, block.result).all_statements()}
        if any(x.operation in ("indirect", "masked") for x in block.statements):
            raise CaptureError(
                f"the gradient of score_mod {self.modification.name!r} goes through a read by subscript "
                "inside a joined or padded tensor",
                where=self.modification.source,
                remedy="join or pad the tensor outside, and let the function capture the result",
            )
        leaves = [x for x in block.statements if x.operation == "load" and x.id in self.active]
        outside = dict.fromkeys(
            a for x in block.statements if x.operation in OPERATIONS or x.operation == "to_dtype"
            for a in (x.args if x.operation in OPERATIONS else x.args[:1]) if a not in inner and a in self.active
        )  # fmt: skip
        if block.result not in inner:
            outside.setdefault(block.result)
        d_score = None
        for target in [*(x.id for x in leaves), *outside]:

            def run(handler: Any, target: int = target) -> Any:
                env: dict[int, Any] = {}

                def value(number: int) -> Any:
                    return env[number] if number in env else read(number)

                for x in block.statements:
                    env[x.id] = _rerun(x, handler, value)
                own = {block.result: g}
                found = self._sweep_to(target, block.statements, own, handler, value)
                return found if found is not None else handler.constant(0.0, self.statements[target].dtype)

            made = ops.masked(read(condition), run, 0.0)
            if target in outside:
                self._arrive(pending, target, made, ops)
            elif self.statements[target].args[0] == SCORE:
                d_score = made
            else:
                self._contribute(self.statements[target], made, ops, condition)
        return d_score

    def _sweep_to(self, target: int, statements: tuple[Statement, ...], pending: dict, ops: Any, read: Any) -> Any:
        """What comes to one statement in a sweep over a block."""
        found: list[Any] = []
        for s in reversed(statements):
            if s.id == target:
                found.append(pending.pop(s.id, None))
                break
            g = pending.pop(s.id, None)
            if g is None or s.id not in self.active or s.operation == "load":
                continue
            algebra = Algebra(ops.tagged(s.origins), s.dtype, self.constants)
            if s.operation == "to_dtype":
                self._arrive(pending, s.args[0], ops.to_dtype(g, self.statements[s.args[0]].dtype), ops)
            elif s.operation not in CONSTANT_PIECES:
                parts = self._rule(s).rule(algebra, g, read(s.id), *(read(a) for a in s.args))
                for operand, part in zip(s.args, parts, strict=True):
                    if part is not None and operand in self.active:
                        self._arrive(pending, operand, part, ops)
        return found[0] if found else pending.pop(target, None)


def _rerun(s: Statement, ops: Any, value: Callable[[int], Any]) -> Any:
    """One statement of a block under another handler."""
    if s.operation == "load":
        return ops.load(*s.args)
    if s.operation == "constant":
        return ops.constant(s.args[0], s.dtype)
    if s.operation == "index_value":
        return ops.index_value(s.args[0], s.dtype)
    if s.operation == "to_dtype":
        return ops.to_dtype(value(s.args[0]), s.args[1])
    return ops.apply(s.operation, *(value(a) for a in s.args))


def _active(body: LoopBody, learns: dict[str, int]) -> set[int]:
    """Statements that a derivative can go through: floating-point values made of the score or of what learns."""
    found: set[int] = set()

    def visit(statements: tuple[Statement, ...]) -> None:
        for s in statements:
            if s.operation == "masked":
                visit(s.args[1].statements)
                sources = (s.args[1].result,)
            elif s.operation == "to_dtype":
                sources = s.args[:1]
            else:
                sources = s.args if s.operation in OPERATIONS else ()
            leaf = s.operation == "load" and (s.args[0] == SCORE or s.args[0] in learns)
            if s.dtype.is_floating_point and (leaf or any(a in found for a in sources)):
                found.add(s.id)

    visit(body.statements)
    return found


def _dependences(body: LoopBody) -> dict[Any, frozenset[str]]:
    """Which of b, h, q, kv each statement, and each symbol read at run time, varies with."""
    found: dict[Any, frozenset[str]] = {symbol: frozenset({symbol.name}) for symbol in body.indices}

    def visit(statements: tuple[Statement, ...]) -> None:
        for s in statements:
            parts: list[frozenset[str]] = []
            for a in s.args:
                if isinstance(a, Expr):
                    parts += [found.get(symbol, frozenset()) for symbol in a.symbols]
                elif isinstance(a, Block):
                    visit(a.statements)
                    parts.append(found[a.result])
            if s.operation == "load" and s.args[0] == SCORE:
                parts.append(frozenset(SUBSCRIPTS))
            if s.operation in OPERATIONS:
                parts += [found[a] for a in s.args]
            elif s.operation in ("to_dtype", "indirect", "masked"):
                parts.append(found[s.args[0]])
            found[s.id] = frozenset().union(*parts)
            if s.operation == "indirect":
                found[s.args[3]] = found[s.id]

    visit(body.statements)
    return found


def _dims_of(subscript: Expr, found: dict[Any, frozenset[str]]) -> tuple[str, ...]:
    varies = frozenset().union(*(found.get(symbol, frozenset()) for symbol in subscript.symbols))
    return tuple(name for name in SUBSCRIPTS if name in varies)


def _needed(body: LoopBody, roots: Iterable[int], symbols: frozenset[Symbol]) -> LoopBody:
    """The body without the statements that neither ``roots`` nor a subscript of ``symbols`` depends on."""
    wanted, subscripts = set(roots), set(symbols)
    kept: list[Statement] = []

    def uses(s: Statement) -> None:
        for position, a in enumerate(s.args):
            if isinstance(a, Expr):
                subscripts.update(a.symbols)
            elif isinstance(a, Block):
                wanted.add(a.result)
                for inner in a.statements:
                    uses(inner)
            elif s.operation in OPERATIONS or (position == 0 and s.operation in ("to_dtype", "masked", "indirect")):
                wanted.add(a)

    for s in reversed(body.statements):
        if s.id in wanted or (s.operation == "indirect" and s.args[3] in subscripts):
            uses(s)
            kept.append(s)
    return replace(body, statements=tuple(reversed(kept)))


__all__ = ["AdjointBody", "Contribution", "adjoint_of"]
