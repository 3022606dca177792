"""Refuses what a view's query may not contain, because the rows that a change concerns could not be derived from it, or
because its result depends on something else than rows.
"""

from collections.abc import Iterator
from typing import Final

from sqlglot import exp
from sqlglot.optimizer.scope import Scope

DIALECT: Final = "postgres"
_OF_THE_MOMENT: Final = (
    exp.CurrentTimestamp,
    exp.CurrentDate,
    exp.CurrentTime,
    exp.Localtime,
    exp.Rand,
    exp.Uuid,
    exp.CurrentUser,
    exp.CurrentSchema,
    exp.TableSample,
)
# STABLE functions of pg_catalog whose result depends on the moment or on the session. PostgreSQL tells VOLATILE ones.
_OF_THE_SESSION: Final = frozenset(
    """
    now transaction_timestamp statement_timestamp localtimestamp current_setting current_user session_user user
    current_role current_database current_catalog current_schema current_schemas current_query txid_current
    txid_current_snapshot txid_current_if_assigned pg_current_xact_id pg_current_xact_id_if_assigned
    pg_current_snapshot pg_backend_pid pg_postmaster_start_time pg_conf_load_time inet_client_addr inet_client_port
    inet_server_addr inet_server_port table_to_xml schema_to_xml database_to_xml
    """.split()  # noqa: SIM905 - one word each would take a line
)
SETS: Final = frozenset(  # functions that return several rows, beside those that the parser knows
    """
    jsonb_array_elements json_array_elements jsonb_array_elements_text json_array_elements_text jsonb_object_keys
    json_object_keys jsonb_path_query regexp_split_to_table regexp_matches string_to_table generate_subscripts
    """.split()  # noqa: SIM905 - one word each would take a line
)
_RELATIVE_TIMES: Final = frozenset({"now", "today", "tomorrow", "yesterday"})
_ORDERED: Final = frozenset(
    """
    jsonb_agg json_agg json_object_agg jsonb_object_agg xmlagg array_agg json_arrayagg json_objectagg
    jsonb_agg_strict json_agg_strict jsonb_object_agg_strict json_object_agg_strict jsonb_object_agg_unique
    json_object_agg_unique jsonb_object_agg_unique_strict json_object_agg_unique_strict
    """.split()  # noqa: SIM905 - one word each would take a line
)


_ORDERED_WINDOWS: Final = frozenset({"row_number", "ntile", "lag", "lead", "first_value", "last_value", "nth_value"})


def refusals(root: Scope) -> Iterator[str]:
    """Yields each thing in the query that is refused. The query's columns are qualified."""
    tree = root.expression
    yield from _unsupported(tree)
    yield from _not_deterministic(tree)
    for scope in root.traverse():
        if not scope.is_root and not scope.is_derived_table and not scope.is_cte:
            continue  # a subquery in an expression: its result concerns the row around it only
        if scope.is_derived_table and scope.external_columns:
            continue  # LATERAL, the same
        if isinstance(scope.expression, exp.Select) and is_limited(scope.expression):
            yield "LIMIT and OFFSET are for subqueries that an equality ties to the row around them"


def is_chosen(select: exp.Expr, projection: exp.Expr) -> str | None:
    """Returns what makes a row of the SELECT depend on rows with other values of this column of it, which no equality
    in the query around it limits; None if nothing does. Aggregates do not: the columns that leave the SELECT identify
    their groups. DISTINCT ON and windows do not if they list the column."""
    if is_limited(select):
        return "LIMIT and OFFSET"
    value = projection.unalias()
    distinct = select.args.get("distinct")
    on = distinct.args.get("on") if distinct is not None else None
    if on is not None:
        listed = [_referenced(one, select) for one in (on.expressions if isinstance(on, exp.Tuple) else [on.unnest()])]
        if value not in listed:
            return "DISTINCT ON"
    for window in select.find_all(exp.Window):
        if window.parent_select is select and value not in (window.args.get("partition_by") or ()):
            return "window functions"
    return None


def is_limited(select: exp.Expr) -> bool:
    """Returns whether a SELECT or a set operation returns only some of its rows."""
    return bool(select.args.get("limit") or select.args.get("offset") or select.args.get("fetch"))


def _referenced(expression: exp.Expr, select: exp.Expr) -> exp.Expr:
    """The expression that a number or a name of a result in DISTINCT ON stands for."""
    if isinstance(expression, exp.Literal) and not expression.is_string:
        numbered: exp.Expr = select.expressions[int(expression.name) - 1].unalias()
        return numbered
    if isinstance(expression, exp.Column) and not expression.table:
        return next((one.unalias() for one in select.expressions if one.alias_or_name == expression.name), expression)
    return expression


def called(tree: exp.Expr) -> Iterator[str]:
    """Yields the names of the functions that an expression calls, as PostgreSQL and as the parser name them."""
    for call in tree.find_all(exp.Func):
        yield from called_here(call)


def _unsupported(tree: exp.Expr) -> Iterator[str]:
    if any(with_.args.get("recursive") for with_ in tree.find_all(exp.With)):
        yield "WITH RECURSIVE can't be traced to a key"
    for join in tree.find_all(exp.Join):
        if join.side in ("RIGHT", "FULL"):
            yield f"{join.side} JOIN can't be traced to a key: write LEFT JOIN or JOIN with ON"
    if tree.find(exp.Rollup, exp.Cube, exp.GroupingSets):
        # A row changes the groups of less columns, too, whose key is not made of the row's values.
        yield "ROLLUP, CUBE and GROUPING SETS can't be traced to a key: write a view for each grouping"
    tables = {table.alias_or_name for table in tree.find_all(exp.Table)}
    for column in tree.find_all(exp.TableColumn, exp.Column):
        if isinstance(column, exp.TableColumn) or isinstance(column.this, exp.Star):
            if isinstance(column, exp.TableColumn) and column.name not in tables:
                continue  # a subquery, which names its columns
            # Its columns would have to be known before they are added to the table.
            yield f"{column.sql(DIALECT)} is a whole row: name its columns, for example with jsonb_build_object"
    if locks := tree.find(exp.Lock, exp.Parameter, exp.Placeholder):
        yield f"{locks.sql(DIALECT)} has no place in a view"


def _not_deterministic(tree: exp.Expr) -> Iterator[str]:
    found: list[exp.Expr] = list(tree.find_all(*_OF_THE_MOMENT))
    found += [call for call in tree.find_all(exp.Func) if not _OF_THE_SESSION.isdisjoint(called_here(call))]
    found += [
        call
        for call in tree.find_all(exp.Anonymous)
        if call.name.lower() == "age" and len(call.expressions) == 1  # relative to the current date
    ]
    found += [
        cast
        for cast in tree.find_all(exp.Cast)
        if isinstance(cast.this, exp.Literal) and _RELATIVE_TIMES & set(cast.this.name.lower().split())
    ]
    for one in found:
        yield f"{one.sql(DIALECT)} is not deterministic: it changes without a change of a row"
    for call in tree.find_all(exp.Func):
        is_list = not _ORDERED.isdisjoint(called_here(call)) or isinstance(call, (exp.ArrayAgg, exp.GroupConcat))
        if "any_value" in called_here(call):
            yield f"{call.sql(DIALECT)} is not deterministic: write min() or max()"
        if is_list and not _has_order(call) and not isinstance(call.parent, exp.WithinGroup):
            yield f"{call.sql(DIALECT)} is not deterministic: write ORDER BY inside of it"
    for select in tree.find_all(exp.Select):
        if select.args.get("order") is not None or isinstance(select.parent, exp.Exists):
            continue
        distinct = select.args.get("distinct")
        is_on = distinct is not None and distinct.args.get("on") is not None
        is_array = isinstance(select.parent, exp.Array)
        if is_array or is_on or (is_limited(select) and not _is_in_exists(select)):
            yield f"{select.sql(DIALECT)} is not deterministic: write ORDER BY inside of it"
    for window in tree.find_all(exp.Window):
        is_ordered = window.args.get("order") or window.args.get("alias")
        if not is_ordered and not _ORDERED_WINDOWS.isdisjoint(called(window.this)):
            yield f"{window.sql(DIALECT)} is not deterministic: write ORDER BY inside of it"


def _has_order(call: exp.Expr) -> bool:
    """Says whether an aggregate has an ORDER BY of its own, and not only a subquery in it."""
    return any(order.parent_select is call.parent_select for order in call.find_all(exp.Order))


def _is_in_exists(select: exp.Select) -> bool:
    return isinstance(select.parent, exp.Exists) or isinstance(select.parent and select.parent.parent, exp.Exists)


def called_here(call: exp.Func) -> set[str]:
    """Returns the names of one call."""
    if isinstance(call, exp.Anonymous):
        return {call.name.lower()}
    return {call.sql_name().lower(), call.sql(DIALECT).partition("(")[0].lower()}
