"""Makes mutants: copies of a module with one small error.

Positions come from `ast`, and only the text between them is replaced, so the rest of the file is unchanged. What tests
cannot be expected to notice is not mutated: docstrings, messages, log lines, annotations, assertions.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MESSAGES = {
    *("print", "log", "debug", "info", "warning", "echo", "reach"),
    *("tell", "_tell", "say", "_say", "notify", "_notify", "report_progress"),
    "assert_never",
}
"""Calls of these only produce text for people, mark failpoints for tests, or are for the type checker."""
COMPARISONS = {
    ast.Lt: ("<", ("<=", ">=")),
    ast.LtE: ("<=", ("<", ">")),
    ast.Gt: (">", (">=", "<=")),
    ast.GtE: (">=", (">", "<")),
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
    ast.Is: ("is", ("is not",)),
    ast.IsNot: ("is not", ("is",)),
    ast.In: ("in", ("not in",)),
    ast.NotIn: ("not in", ("in",)),
}
PLAIN = {"strict", "daemon", "soft_wrap", "markup", "highlight", "ignore_errors"}
"""Arguments that have no effect, or only affect how something looks."""
OPPOSITES = {"min": "max", "max": "min", "any": "all", "all": "any"}


class Mutant(NamedTuple):
    """One change of one module: the text from `start` to `end` becomes `new`."""

    module: str
    function: str
    """The function that contains it; empty for module-level code."""
    line: int
    lines: range
    """The lines of the statement that contains it: a test that executes one of them may notice."""
    start: int
    end: int
    new: str
    before: str
    after: str
    """The first changed line, without its indentation, before and after."""

    def apply(self, source: str) -> str:
        return source[: self.start] + self.new + source[self.end :]

    def is_valid(self, source: str) -> bool:
        """Whether the changed module is still Python."""
        try:
            ast.parse(self.apply(source))
        except SyntaxError:
            return False
        return True


def mutants_of(module: str, path: Path) -> list[Mutant]:
    """All mutants of a module, in the order of their lines. Whether each is valid is not checked: that takes long."""
    source = path.read_text()
    found = {(m.start, m.end, m.new): m for m in _Maker(module, source).make()}
    return sorted(found.values(), key=lambda m: (m.start, m.end, m.new))


class _Maker:
    def __init__(self, module: str, source: str) -> None:
        self.module = module
        self.source = source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def make(self) -> Iterator[Mutant]:
        for statement in ast.parse(self.source).body:
            yield from self._statement(statement, "", 0)

    def _statement(self, node: ast.stmt, function: str, place: int) -> Iterator[Mutant]:
        """Mutants of a statement and of nested ones; `place` is the number of statements after it in its block."""
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = node.name if function == "" or isinstance(node, ast.ClassDef) else function
            yield from self._block(node.body, "" if isinstance(node, ast.ClassDef) else inner)
            return
        if _is_left_out(node):
            return
        lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        blocks = [getattr(node, name, []) for name in ("body", "orelse", "finalbody")]
        handlers = list(getattr(node, "handlers", [])) + list(getattr(node, "cases", []))
        if any(blocks) or handlers:
            first = min(inner.lineno for block in [*blocks, *(h.body for h in handlers)] for inner in block)
            lines = range(node.lineno, max(first, node.lineno + 1))
        for start, end, new in [*self._removals(node, place), *self._expressions(node)]:
            if (mutant := self._mutant(function, lines, start, end, new)) is not None:
                yield mutant
        for block in blocks:
            yield from self._block(block, function)
        for handler in handlers:
            yield from self._block(handler.body, function)

    def _block(self, body: list[ast.stmt], function: str) -> Iterator[Mutant]:
        for at, node in enumerate(body):
            yield from self._statement(node, function, len(body) - 1 - at)

    def _mutant(self, function: str, lines: range, start: int, end: int, new: str) -> Mutant | None:
        line = self.source.count("\n", 0, start) + 1
        begin = self._starts[line - 1]
        before = self.source[begin : self._starts[line]].strip()
        after = (self.source[begin:start] + new + self.source[end:]).partition("\n")[0].strip()
        if before == after:
            return None
        return Mutant(self.module, function, line, lines, start, end, new, before, after)

    # --- kinds ------------------------------------------------------------------------------------------

    def _removals(self, node: ast.stmt, place: int) -> Iterator[tuple[int, int, str]]:
        start, end = self._span(node)
        match node:
            case ast.Expr(value=ast.Call()) | ast.Raise() | ast.AugAssign() | ast.Delete():
                yield start, end, "pass"
            case ast.Continue() | ast.Break():
                yield start, end, "pass"
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
                yield start, end, "pass"
            case ast.Return(value=None):
                yield start, end, "pass"
            case ast.Return(value=value) if not _is_nothing(value):
                yield start, end, "return None"
            case ast.With(items=[only]) if only.optional_vars is None:
                yield *self._span(only.context_expr), "__import__('contextlib').nullcontext()"

    def _expressions(self, statement: ast.stmt) -> Iterator[tuple[int, int, str]]:
        for node in _parts(statement):
            match node:
                case ast.Compare():
                    yield from self._comparisons(node)
                case ast.BoolOp():
                    words = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
                    for left, right in zip(node.values, node.values[1:], strict=False):
                        yield from self._between(left, right, *words)
                case ast.UnaryOp(op=ast.Not()):
                    yield self._span(node)[0], self._span(node.operand)[0], ""
                case ast.Constant(value=bool() as flag):
                    yield *self._span(node), str(not flag)
                case ast.Constant(value=int() as number):
                    yield *self._span(node), str(number + 1)
                case ast.BinOp(op=ast.Add() | ast.Sub()) if not _is_text(node):
                    words = (r"\+", "-") if isinstance(node.op, ast.Add) else ("-", "+")
                    yield from self._between(node.left, node.right, *words)
                case ast.Call(func=ast.Name(id=name)) if name in OPPOSITES:
                    yield *self._span(node.func), OPPOSITES[name]
                case ast.Call(args=[ast.Name() as one, ast.Name() as other], keywords=[]) if not _is_builtin(
                    node
                ):
                    yield self._span(one)[0], self._span(other)[1], f"{other.id}, {one.id}"
                case ast.comprehension():
                    for test in node.ifs:
                        yield *self._span(test), "True"
            asked = getattr(node, "test", None)
            if isinstance(asked, ast.Name | ast.Attribute | ast.Call | ast.BoolOp | ast.NamedExpr):
                start, end = self._span(asked)
                yield start, end, f"not ({self.source[start:end]})"

    def _comparisons(self, node: ast.Compare) -> Iterator[tuple[int, int, str]]:
        for left, op, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
            word, others = COMPARISONS[type(op)]
            for other in others:
                yield from self._between(left, right, re.escape(word).replace(r"\ ", r"\s+"), other)

    def _between(
        self, left: ast.expr, right: ast.expr, word: str, new: str
    ) -> Iterator[tuple[int, int, str]]:
        start, end = self._span(left)[1], self._span(right)[0]
        found = re.search(word, self.source[start:end])
        if found is not None:
            yield start + found.start(), start + found.end(), new

    def _span(self, node: ast.stmt | ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._offset(node.lineno, node.col_offset), self._offset(node.end_lineno, node.end_col_offset)

    def _offset(self, line: int, column: int) -> int:
        start = self._starts[line - 1]
        text = self.source[start : self._starts[line]]
        return start + len(text.encode()[:column].decode())


def _is_left_out(node: ast.stmt) -> bool:
    match node:
        case ast.Import() | ast.ImportFrom() | ast.Assert() | ast.Pass() | ast.Expr(value=ast.Constant()):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.Expr(value=ast.Call(func=func)):
            return _name_of(func) in MESSAGES
        case ast.Assign(targets=[ast.Name(id="__all__")]):
            return True
    return False


def _parts(statement: ast.stmt) -> Iterator[ast.AST]:
    """The expressions of a statement, without those of nested statements and without text for people."""
    queue: list[ast.AST] = []
    for field, value in ast.iter_fields(statement):
        if field in ("body", "orelse", "finalbody", "handlers", "cases", "annotation", "exc", "cause"):
            continue
        values = value if isinstance(value, list) else [value]
        queue += [v for v in values if isinstance(v, ast.AST)]
    if not isinstance(statement, ast.Raise):
        yield statement
    while queue:
        node = queue.pop()
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Call) and _is_message(node)):
            continue
        if isinstance(node, ast.keyword) and node.arg in PLAIN:
            continue
        yield node
        queue += list(ast.iter_child_nodes(node))


def _is_message(node: ast.Call) -> bool:
    name = _name_of(node.func)
    return name in MESSAGES or name.endswith("Error") or name in ("Option", "Argument")


def _name_of(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _is_builtin(node: ast.Call) -> bool:
    """Such as `isinstance`, whose arguments nobody would swap."""
    return hasattr(builtins, _name_of(node.func))


def _is_nothing(node: ast.expr | None) -> bool:
    """Whether replacing it by None changes nothing, or only text. (`False` becomes `True` elsewhere.)"""
    if isinstance(node, ast.Constant):
        return node.value is None or node.value is False
    return node is None or isinstance(node, ast.JoinedStr)


def _is_text(node: ast.BinOp) -> bool:
    sides = (node.left, node.right)
    if any(isinstance(side, ast.BinOp) and _is_text(side) for side in sides):
        return True
    return any(
        isinstance(side, ast.JoinedStr | ast.List | ast.Tuple)
        or (isinstance(side, ast.Constant) and isinstance(side.value, str | bytes))
        for side in sides
    )
