"""What parses each class of syntax tree node: the tables of all files, joined."""

from __future__ import annotations

from tensorkiln.script import (
    graph_words,
    parse_buffer,
    parse_expr,
    parse_functions,
    parse_graph,
    parse_graph_calls,
    parse_python,
    parse_statements,
)
from tensorkiln.script.scope import Grammar

GRAMMAR = Grammar(
    expressions={
        **parse_expr.EXPRESSIONS,
        **parse_python.EXPRESSIONS,
        **parse_buffer.EXPRESSIONS,
        **parse_functions.EXPRESSIONS,
    },
    statements=parse_statements.STATEMENTS,
    graph_statements=parse_graph.STATEMENTS,
    graph_calls={**parse_graph_calls.CALLS, **graph_words.CALLS},
    operator_call=graph_words.operator_call,
)
