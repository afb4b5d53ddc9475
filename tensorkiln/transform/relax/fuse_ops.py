"""Group operators into fused groups, each of which becomes one kernel.

    y = conv2d(x, w); z = add(y, r); u = relu(z)   ->   u = conv2d_add_relu(x, w, r)

A group has at most one anchor: a contraction, a reduction, or an opaque operator. What may join it
after (its epilogue) and before (its prologue), the kernel families of the anchor say. Elementwise
and injective operators with a single reader are computed inside the reader's group. Row-major
reshapes remain calls, since
they are views of their operand, and so do concatenations whose operands can be computed in place
(`adjacent_concats`). Later passes see only these and calls of fused groups.

Needs: `assign_layouts`, in the full pipeline.

Rules of the caller take precedence. `FuseRule("relu(max_pool2d(x))")` puts both operators into one
kernel, whose schedule is then plain loops; `FuseRule("relu(conv2d(*_))", fuse=False)` keeps them
apart. A rule must name operators as `select_algorithms` has left them (`winograd_conv2d`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tensorkiln import ops
from tensorkiln.base.text import unused
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.dtype import INT16
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Binding, Call, Constant, Function, GlobalRef, RVar, Tuple, Value
from tensorkiln.ir.visit import extern_names
from tensorkiln.kernels import families, is_view
from tensorkiln.target import Target, device_key, target_in
from tensorkiln.transform.relax.adjacent_concats import adjacent_concats
from tensorkiln.transform.relax.fuse_rule import FuseRule, decide_edges, parse_rule


@dataclass(frozen=True, slots=True)
class FuseOps:
    """Fuse the operators of every graph function. With `default=False`, only `rules` fuse any.

    Of several rules on the same value, the first decides. Raises UserError for a rule whose pattern
    is malformed (code `bad-rule`) or names an unknown operator (code `unknown-operator`).
    """

    target: Target
    rules: tuple[FuseRule, ...] = ()
    default: bool = True

    def __call__(self, mod: IRModule) -> IRModule:
        """Return the module with its fused groups; `mod` itself if there are none to make."""
        functions: list[Function] = []
        graphs = {}
        called = {name for f in mod.prim_funcs for name in extern_names(f)}
        names = {*mod, *called}
        parsed = [(parse_rule(r.pattern), r.fuse) for r in self.rules]
        for f in mod.unplanned:
            decided = decide_edges(f, parsed)
            target, device = target_in(self.target, f.attrs), device_key(self.target, f.attrs)
            fused, groups = _Fuse(f, names, decided, self.default, target).run()
            if device:
                groups = [replace(g, attrs=Attrs.of(**g.attrs, target=device)) for g in groups]
            graphs[f.name] = fused
            functions += groups
        if not functions:
            return mod
        module_functions = tuple(graphs.get(f.name, f) for f in mod.functions)
        return mod.with_functions((*module_functions, *functions))


# Operators of one group: their element programs call each other, and Python's stack is bounded.
MOST_OPERATORS = 48


@dataclass(slots=True)
class _Group:
    """A group under construction: its bindings in order, and the name of its anchor or "".

    `by_rule`: a rule has fused what would not be fused by default.
    """

    bindings: list[Binding] = field(default_factory=list)
    anchor: str = ""
    by_rule: bool = False

    @property
    def out(self) -> RVar:
        return self.bindings[-1].var

    @property
    def anchor_binding(self) -> Binding:
        """The binding of the anchor, which is the only one of its operator in the group."""
        calls = ((b, b.value) for b in self.bindings)
        return next(b for b, c in calls if isinstance(c, Call) and c.op == self.anchor)

    @property
    def last(self) -> str:
        call = self.bindings[-1].value
        return call.op if isinstance(call, Call) else ""

    @property
    def is_view(self) -> bool:
        return len(self.bindings) == 1 and is_view(self.bindings[0])

    @property
    def has_view(self) -> bool:
        """Whether elements are read through a view, before the anchor if there is one."""
        return not self.anchor and any(is_view(b) for b in self.bindings)


def _own_results(f: Function) -> Function:
    """Copy results that are parameters, constants, or share memory with another result.

    The caller passes separate memory for each result.
    """
    fields = f.result.fields if isinstance(f.result, Tuple) else (f.result,)
    new: list[Value] = []
    copies: list[Binding] = []
    owners: set[Value] = set()
    memory: dict[Value, Value] = {}
    for b in f.bindings:
        if is_view(b):
            assert isinstance(b.value, Call)
            memory[b.var] = memory.get(b.value.args[0], b.value.args[0])
    for k, v in enumerate(fields):
        owner = memory.get(v, v) if isinstance(v, RVar) else v
        if isinstance(v, Constant) or v in f.params or owner in owners:
            copy = RVar(f"result{k}", v.type)
            copies.append(Binding(copy, Call("identity", (v,))))
            v = copy
        owners.add(owner)
        new.append(v)
    if not copies:
        return f
    result = Tuple(tuple(new)) if isinstance(f.result, Tuple) else new[0]
    return replace(f, bindings=(*f.bindings, *copies), result=result)


class _Fuse:
    def __init__(
        self, f: Function, names: set[str], decided: dict[RVar, bool], default: bool, target: Target
    ):
        f, self.adjacent = _own_results(f), set[RVar]()
        if default:
            f, self.adjacent = adjacent_concats(f, decided)
        self.f, self.names, self.decided, self.default = f, names, decided, default
        self.target, self.families = target, families(target)
        self.uses: dict[RVar, int] = {}
        for b in f.bindings:
            if isinstance(b.value, Call):
                for a in b.value.args:
                    self._count(a)
        self._count(f.result)
        self.results = set(_vars(f.result))
        self.group_of: dict[RVar, _Group] = {}

    def _count(self, v: Value) -> None:
        for x in _vars(v):
            self.uses[x] = self.uses.get(x, 0) + 1

    def run(self) -> tuple[Function, list[Function]]:
        slots: list[Binding | _Group] = []
        for b in self.f.bindings:
            call = b.value
            slots.append(self._place(b, call) if isinstance(call, Call) and call.op else b)
        bindings: list[Binding] = []
        functions: list[Function] = []
        # The call of a group takes the place of its last operator, where all operands are bound.
        for slot in slots:
            if isinstance(slot, Binding):
                bindings.append(slot)
            elif self.group_of[slot.out] is slot:
                self._emit(slot, bindings, functions)
        return replace(self.f, bindings=tuple(bindings)), functions

    # -- which groups to join ------------------------------------------------------------

    def _place(self, b: Binding, call: Call) -> _Group:
        """A new group for one operator, merged with the groups of operands that can join it."""
        pattern = ops.get(call.op).pattern
        group = _Group(anchor=call.op if pattern in ("contraction", "reduction", "opaque") else "")
        joined: list[_Group] = []
        for a in call.args:
            if not isinstance(a, RVar) or self.uses.get(a) != 1 or a not in self.group_of:
                continue
            producer = self.group_of[a]
            if producer.out is not a or b.var in self.adjacent:
                continue
            if sum(len(p.bindings) for p in (*joined, producer)) >= MOST_OPERATORS:
                continue
            usual = self.default and self._can_join(producer, b, call, pattern, group.anchor)
            if self.decided.get(a, usual) and (usual or _can_loop(producer, call, group.anchor)):
                group.anchor = group.anchor or producer.anchor
                group.by_rule |= producer.by_rule or not usual
                joined.append(producer)
        if any(p.anchor for p in joined):
            # An epilogue is computed in vectors, which a view in another operand may cut apart:
            # joined by a rule of the caller, the group is computed by plain loops.
            decided = any(self.decided.get(p.out, False) for p in joined if p.has_view)
            group.by_rule |= decided
            joined = [p for p in joined if group.by_rule or not p.has_view]
        for p in joined:
            group.bindings += p.bindings
        group.bindings.append(b)
        for x in group.bindings:
            self.group_of[x.var] = group
        return group

    def _can_join(
        self, producer: _Group, b: Binding, call: Call, pattern: str, anchor: str
    ) -> bool:
        if producer.last == "concat" or (producer.anchor and anchor):
            return False
        if producer.anchor:
            last = producer.out.tensor
            return self.families.takes_epilogue(producer.anchor_binding, last, b, self.target)
        if pattern in ("elementwise", "broadcast"):
            return not producer.is_view
        operand = call.args.index(producer.out)
        # A row-major reshape by itself is free: a view of the memory of its operand.
        if is_view(b) or self.families.wants_apart(b, operand, producer.bindings, self.target):
            return False
        if pattern == "injective":
            return True
        return self.families.takes_prologue(b, operand, producer.bindings, self.target)

    # -- building the functions ----------------------------------------------------------

    def _emit(self, group: _Group, bindings: list[Binding], functions: list[Function]) -> None:
        shares = group.is_view and not self._result_needs_copy(group)
        if shares or group.out in self.adjacent:
            bindings.append(group.bindings[0])
            return
        params: dict[int, tuple[Value, RVar]] = {}
        inside: dict[RVar, RVar] = {}
        body: list[Binding] = []

        def operand(op: str, a: Value) -> Value:
            if isinstance(a, RVar) and a in inside:
                return inside[a]
            if isinstance(a, Constant) and a.data.size == 1 and not _is_parameter(op, a):
                return a
            if id(a) not in params:
                params[id(a)] = (a, RVar(f"p{len(params)}", a.type))
            return params[id(a)][1]

        for b in group.bindings:
            call = b.value
            assert isinstance(call, Call)
            new = RVar(b.var.name, b.var.type)
            body.append(
                Binding(new, replace(call, args=tuple(operand(call.op, a) for a in call.args)))
            )
            inside[b.var] = new
        name = unused(_group_name(group), self.names)
        self.names.add(name)
        functions.append(
            Function(
                name,
                tuple(p for _, p in params.values()),
                tuple(body),
                inside[group.out],
                Attrs.of(primitive=True, **({"by_rule": True} if group.by_rule else {})),
            )
        )
        args = tuple(a for a, _ in params.values())
        call = Call(GlobalRef(name), args, span=_group_span(group))
        bindings.append(Binding(group.out, call))

    def _result_needs_copy(self, group: _Group) -> bool:
        """Whether a reshape is a result of the function and its operand has no memory that it could
        share: a parameter, a constant, or another result."""
        if group.out not in self.results:
            return False
        source = group.bindings[0].value.args[0]  # type: ignore[union-attr]
        while (
            isinstance(source, RVar) and source in self.group_of and self.group_of[source].is_view
        ):
            source = self.group_of[source].bindings[0].value.args[0]  # type: ignore[union-attr]
        return not isinstance(source, RVar) or source in self.f.params or source in self.results


def _is_parameter(op: str, a: Constant) -> bool:
    """Whether a constant of one element becomes a parameter of the kernel instead of a part of its
    code: packed weights, which kernels read from memory, and scales and zero points that are not
    neutral, so that layers that differ only in them share a kernel."""
    if a.type.layout is not None:
        return True
    neutral = int(a.type.dtype.is_float)  # scale 1, zero point 0
    scale = op in ("quantize", "dequantize") and bool((a.array != neutral).any())
    return scale or a.type.dtype == INT16  # zero points of products of two activations


def _can_loop(producer: _Group, call: Call, anchor: str) -> bool:
    """Whether plain loops can compute a group and its reader in one kernel: each operator has an
    element program, and at most one is an anchor."""
    calls = [b.value for b in producer.bindings if isinstance(b.value, Call)]
    programs = all(ops.get(c.op).program is not None for c in (*calls, call))
    return programs and producer.last != "concat" and not (producer.anchor and anchor)


def _vars(v: Value) -> list[RVar]:
    if isinstance(v, RVar):
        return [v]
    return [x for f in v.fields for x in _vars(f)] if isinstance(v, Tuple) else []


def _group_name(group: _Group) -> str:
    names = [b.value.op for b in group.bindings if isinstance(b.value, Call)]
    short = names if len(names) <= 4 else [*names[:3], f"x{len(names) - 3}"]
    return "_".join(short)


def _group_span(group: _Group) -> str:
    """The span (the node's name in the model) of the anchor, or of the last operator."""
    calls = [b.value for b in group.bindings if isinstance(b.value, Call)]
    main = next((c for c in calls if c.op == group.anchor), calls[-1])
    return main.span
