"""What does a query ask for? Its selectors, and the functions around them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import promql_parser

# With `promql_parser` anything goes that Prometheus 3 understands; the server of the tests is
# older and has the last word.
_parser: Any = promql_parser


class Selector(NamedTuple):
    """One metric in a query.

    Attributes:
        metric: Its name.
        matchers: Label to (operator, value).
        functions: The functions around it, from the inside out.
    """

    metric: str
    matchers: dict[str, tuple[str, str]]
    functions: tuple[str, ...]


def selectors(expr: str) -> list[Selector]:
    """Every metric that `expr` asks for.

    Raises:
        ValueError: It is no PromQL.
    """
    return list(_selectors(_parser.parse(expr), ()))


def _selectors(node: Any, around: tuple[str, ...]) -> Iterator[Selector]:
    kind = type(node).__name__
    if kind == "VectorSelector":
        matchers = {
            one.name: (str(one.op).removeprefix("MatchOp."), one.value)
            for one in node.matchers.matchers
        }
        yield Selector(node.name, matchers, around)
    elif kind == "MatrixSelector":
        yield from _selectors(node.vector_selector, around)
    elif kind == "Call":
        for argument in node.args:
            yield from _selectors(argument, (node.func.name, *around))
    elif kind == "BinaryExpr":
        yield from _selectors(node.lhs, around)
        yield from _selectors(node.rhs, around)
    elif kind in {"AggregateExpr", "ParenExpr", "UnaryExpr", "SubqueryExpr"}:
        yield from _selectors(node.expr, around)
