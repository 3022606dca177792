"""An expression over one table's columns: checked against their types, then evaluated for each row. Pure.

Operands are evaluated in PostgreSQL's order. CASE, COALESCE, AND and OR leave out those that do not count, so that
`CASE WHEN q <> 0 THEN p / q END` is computed for every row.
"""

import operator
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from sqlglot import exp

from cdc.formats.kinds import numeric_modifier
from cdc.model.events import Column, TableSchema
from sinks.contract import Json
from sinks.shaping.expressions import computing
from sinks.shaping.expressions.parsing import AVAILABLE, parsed
from sinks.shaping.expressions.parts import (
    NULL,
    Evaluate,
    Part,
    Row,
    alike,
    as_text,
    boolean_part,
    cast_function,
    cast_target,
    common,
    constant,
    constrained,
    converted,
    date_arithmetic,
    is_word_null,
    number_literal,
    number_part,
    number_parts,
    printed,
    shown,
    strict,
    text_literal,
    text_part,
)
from sinks.shaping.expressions.types import (
    BOOLEAN,
    DATE,
    INTEGER,
    NUMERIC,
    SMALLINT,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
    UNKNOWN,
    ComputationError,
    ExpressionError,
    MissingColumnError,
    SqlType,
    Value,
    integer,
    number,
    numeric_column_modifier,
    reader,
    to_json,
    type_of,
)

_DEPTH_MAX: Final = 120  # evaluation needs up to four calls for each level


class Expression:
    """The value of one computed column."""

    def __init__(self, text: str, schema: TableSchema) -> None:
        """Raises ExpressionError."""
        compiler = _Compiler(schema)
        try:
            part = compiler.part(parsed(text))
        except RecursionError:
            raise ExpressionError("it is nested too deep") from None
        if part.type.family in ("label", "other"):
            raise ExpressionError(
                f"its value has type {part.type.name}: cast it to text if that is possible, or store the column itself"
            )
        self._part = part = converted(part, TEXT) if part.type is UNKNOWN else part
        self.type = part.type
        self.columns = frozenset(compiler.columns)

    def column(self, name: str) -> Column:
        """Returns the column with this name that holds the values."""
        type_, modifier = self.type, self._part.modifier
        digits = numeric_modifier(modifier)
        type_name = type_.name if digits is None else f"numeric({digits[0]},{digits[1]})"
        return Column(name, type_.oid, modifier, type_name, nullable=True, base_type_oid=type_.oid)

    def value(self, row: Row) -> Json:
        """Returns the value in the form of records. Raises ComputationError, and MissingColumnError if the row lacks a
        column that is needed."""
        return to_json(self.type, self._part.evaluate(row))


class _Compiler:
    """Makes parts of a tree. Kinds of nodes that are not listed are refused."""

    def __init__(self, schema: TableSchema) -> None:
        self._schema = schema
        self._columns = {column.name: column for column in schema.columns}
        self.columns: set[str] = set()  # that the expression reads
        self._depth = 0

    def part(self, node: exp.Expr | None) -> Part:
        if node is None:
            raise ExpressionError("an operand or argument is missing")
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise ExpressionError("it is nested too deep")
        made = self._part(node)
        self._depth -= 1
        return made

    def _part(self, node: exp.Expr) -> Part:
        found = _NODES.get(type(node))
        if found is None:
            raise ExpressionError(f"{shown(node)} is not available: {AVAILABLE}")
        make, arguments = found
        if extra := next(
            (name for name, value in node.args.items() if value and name not in (*arguments, *_FLAGS)), None
        ):
            raise ExpressionError(f"{shown(node)} is not available in this form ({extra})")
        if isinstance(node, _COMPARISONS) and any(isinstance(one, _COMPARISONS) for one in node.iter_expressions()):
            raise ExpressionError("a comparison of a comparison needs parentheses")
        made = make(self, node)
        if made.type is UNKNOWN or not (made.is_constant or node.find(exp.Column) is None):
            return made
        return _folded(node, made)

    def parts(self, *nodes: exp.Expr | None) -> list[Part]:
        return [self.part(node) for node in nodes if node is not None]

    # ---- columns and literals

    def read_column(self, node: exp.Column) -> Part:
        name = self._name(node)
        column = self._columns.get(name)
        if column is None:
            raise ExpressionError(f"table {self._schema.table} has no column {name}; it has {', '.join(self._columns)}")
        self.columns.add(name)
        type_ = type_of(column)
        stored, read = _stored(name), reader(type_, name)

        def evaluate(row: Row) -> Value:
            value = stored(row)
            return None if value is None else read(value)

        return Part(type_, evaluate, numeric_column_modifier(column))

    def _name(self, node: exp.Column) -> str:
        identifier = node.this
        if not isinstance(identifier, exp.Identifier):
            raise ExpressionError(f"{shown(node)} is not available")
        # As PostgreSQL folds names: only letters of ASCII.
        return identifier.name if identifier.quoted else identifier.name.encode().lower().decode()

    def literal(self, node: exp.Literal) -> Part:
        return text_literal(node.name) if node.is_string else number_literal(node.name)

    def null(self, _: exp.Null) -> Part:
        return NULL

    def boolean(self, node: exp.Boolean) -> Part:
        return constant(BOOLEAN, bool(node.this))

    def inside(self, node: exp.Paren) -> Part:
        return self.part(node.this)

    # ---- logic

    def both(self, node: exp.And) -> Part:
        return _connected(*(boolean_part(part, "AND") for part in self.parts(node.left, node.right)), decides=False)

    def either(self, node: exp.Or) -> Part:
        return _connected(*(boolean_part(part, "OR") for part in self.parts(node.left, node.right)), decides=True)

    def negation(self, node: exp.Not) -> Part:
        return strict(BOOLEAN, operator.not_, boolean_part(self.part(node.this), "NOT"))

    def test(self, node: exp.Is) -> Part:
        """IS [NOT] NULL, UNKNOWN, TRUE or FALSE."""
        if not isinstance(node.expression, exp.Null | exp.Boolean):
            raise ExpressionError(f"{shown(node)} is not available")
        part = self.part(node.this)
        wanted = None if isinstance(node.expression, exp.Null) else bool(node.expression.this)
        if wanted is not None:
            part = boolean_part(part, "IS TRUE")
        is_negated, evaluate = bool(node.args.get("negate")), part.evaluate
        if isinstance(column := node.this.unnest(), exp.Column):  # also of a value that can't be computed with
            evaluate = _stored(self._name(column))
        return Part(BOOLEAN, lambda row: (evaluate(row) is wanted) is not is_negated)

    # ---- comparisons

    def comparison(self, node: exp.Binary) -> Part:
        symbol, compare = _COMPARE[type(node)]
        return self._compared(self.part(node.left), self.part(node.right), symbol, compare)

    def _compared(self, left: Part, right: Part, symbol: str, compare: Callable[[Value, Value], bool]) -> Part:
        return strict(BOOLEAN, compare, *alike([left, right], symbol))

    def distinction(self, node: exp.NullSafeEQ | exp.NullSafeNEQ) -> Part:
        left, right = alike(self.parts(node.left, node.right), "IS DISTINCT FROM")
        is_equal, first, second = isinstance(node, exp.NullSafeEQ), left.evaluate, right.evaluate
        return Part(BOOLEAN, lambda row: (first(row) == second(row)) is is_equal)

    def membership(self, node: exp.In) -> Part:
        if not node.expressions:
            raise ExpressionError("IN needs a list of values")
        # PostgreSQL compares with what depends on no column first.
        nodes = sorted(node.expressions, key=lambda one: one.find(exp.Column) is not None)
        wanted, *listed = alike(self.parts(node.this, *nodes), "IN")
        if wanted.is_null:
            return constant(BOOLEAN, None)
        evaluate, options = wanted.evaluate, [part.evaluate for part in listed]

        def is_in(row: Row) -> Value:
            value, has_null = evaluate(row), False
            for option in options:
                found = option(row)
                if value is None or found is None:
                    has_null = True
                elif value == found:
                    return True
            return None if has_null else False

        return Part(BOOLEAN, is_in)

    def between(self, node: exp.Between) -> Part:
        value, low, high = self.parts(node.this, node.args["low"], node.args["high"])
        above = self._compared(value, low, "BETWEEN", operator.ge)
        below = self._compared(value, high, "BETWEEN", operator.le)
        return _connected(above, below, decides=False)

    # ---- choices

    def case(self, node: exp.Case) -> Part:
        subject = None if node.this is None else self.part(node.this)
        if subject is not None and subject.type is UNKNOWN:
            subject = converted(subject, TEXT)
        conditions = []
        for when in node.args["ifs"]:
            condition = self.part(when.this)
            if subject is None:
                conditions.append(boolean_part(condition, "WHEN"))
            else:
                conditions.append(self._compared(subject, condition, "CASE", operator.eq))
        otherwise = node.args.get("default")
        values = [self.part(when.args["true"]) for when in node.args["ifs"]]
        values.append(NULL if otherwise is None else self.part(otherwise))
        type_, (*values, default) = common(values, "CASE")
        branches = []
        for condition, value in zip(conditions, values, strict=True):
            if not condition.is_constant:
                branches.append((condition.evaluate, value.evaluate))
            elif condition.evaluate({}) is True:
                default = value
                break
        if not branches:
            return default
        last = default.evaluate

        def evaluate(row: Row) -> Value:
            for condition, value in branches:
                if condition(row) is True:
                    return value(row)
            return last(row)

        return Part(type_, evaluate)

    def coalesce(self, node: exp.Coalesce) -> Part:
        type_, values = common(self.parts(node.this, *node.expressions), "coalesce")
        counting = [value for value in values if not value.is_null] or values[:1]
        if counting[0].is_constant or len(counting) == 1:
            return counting[0]
        options = [value.evaluate for value in counting]

        def evaluate(row: Row) -> Value:
            return next((value for option in options if (value := option(row)) is not None), None)

        return Part(type_, evaluate)

    def extreme(self, node: exp.Greatest | exp.Least) -> Part:
        name, choose = ("greatest", max) if isinstance(node, exp.Greatest) else ("least", min)
        type_, values = common(self.parts(node.this, *node.expressions), name)
        options = [value.evaluate for value in values]

        def evaluate(row: Row) -> Value:
            found = [value for option in options if (value := option(row)) is not None]
            return choose(found) if found else None

        return Part(type_, evaluate)

    def nullif(self, node: exp.Nullif) -> Part:
        first, second = self.parts(node.this, node.expression)
        left, right = alike([first, second], "nullif")
        # It has the type of its first argument, unless the comparison needs another.
        is_kept = first.type is not UNKNOWN and not (left.type is NUMERIC and first.type is not NUMERIC)
        kept = first if is_kept else left
        if left.is_null or right.is_null:
            return kept
        value, other = kept.evaluate, right.evaluate
        compared = left.evaluate

        def evaluate(row: Row) -> Value:
            found, unwanted = compared(row), other(row)
            return None if found is None or (unwanted is not None and found == unwanted) else value(row)

        return Part(kept.type, evaluate, kept.modifier)

    # ---- numbers

    def sign(self, node: exp.Neg) -> Part:
        if isinstance(node.this, exp.Literal) and not node.this.is_string:
            return number_literal(f"-{node.this.name}")
        part = number_part(self.part(node.this), "-")
        if part.type is NUMERIC:
            return strict(NUMERIC, lambda value: number(value.copy_negate()), part)
        return strict(part.type, lambda value: integer(part.type, -value), part)

    def arithmetic(self, node: exp.Binary) -> Part:
        symbol, of_integers, of_numerics = _ARITHMETIC[type(node)]
        left, right = self.parts(node.left, node.right)
        if DATE in (left.type, right.type) and symbol in "+-":
            return date_arithmetic(left, right, symbol)
        left, right = number_parts([left, right], symbol)
        if left.type is NUMERIC:
            return strict(NUMERIC, of_numerics, left, right)
        type_ = left.type
        return strict(type_, lambda first, second: integer(type_, of_integers(first, second)), left, right)

    def absolute(self, node: exp.Abs) -> Part:
        part = number_part(self.part(node.this), "abs")
        if part.type is NUMERIC:
            return strict(NUMERIC, Decimal.copy_abs, part)
        return strict(part.type, lambda value: integer(part.type, abs(value)), part)

    def rounding(self, node: exp.Round | exp.Trunc) -> Part:
        name, compute = (
            ("round", computing.rounded_to) if isinstance(node, exp.Round) else ("trunc", computing.truncated_to)
        )
        digits = node.args.get("decimals")
        if digits is None:
            return strict(NUMERIC, lambda value: compute(value, 0), self._numeric(node.this, name))
        value = converted(number_part(self.part(node.this), name), NUMERIC)
        return strict(NUMERIC, compute, value, self._count(digits, name))

    def whole(self, node: exp.Ceil | exp.Floor) -> Part:
        name, compute = ("ceil", computing.ceiling) if isinstance(node, exp.Ceil) else ("floor", computing.floor)
        return strict(NUMERIC, compute, self._numeric(node.this, name))

    def _numeric(self, node: exp.Expr, name: str) -> Part:
        """An argument for which PostgreSQL has a function of numeric, and computes integers as double precision."""
        part = number_part(self.part(node), name)
        if part.type is not NUMERIC:
            raise ExpressionError(f"{name} needs a numeric, not {part.type.name}")
        return part

    def _count(self, node: exp.Expr, name: str) -> Part:
        part = self.part(node)
        if is_word_null(part):
            return converted(part, INTEGER)
        if part.type not in (SMALLINT, INTEGER):
            raise ExpressionError(f"{name} needs an integer there, not {part.type.name}")
        return part

    # ---- texts

    def _texts(self, name: str, *nodes: exp.Expr | None) -> list[Part]:
        parts = self.parts(*nodes)
        for part in parts:
            if part.type not in (TEXT, UNKNOWN):
                raise ExpressionError(f"{name} needs text, not {part.type.name}: cast it to text")
        return [converted(part, TEXT) for part in parts]

    def of_text(self, node: exp.Expr) -> Part:
        """Functions whose arguments are texts."""
        name, type_, compute, arguments = _OF_TEXT[type(node)]
        nodes = [node.args.get(argument) for argument in arguments]
        if missing := next((argument for argument, one in zip(arguments, nodes, strict=True) if one is None), None):
            raise ExpressionError(f"{name} needs one more argument ({missing})")
        return strict(type_, compute, *self._texts(name, *nodes))

    def trimmed(self, node: exp.Trim) -> Part:
        strip = {"LEADING": str.lstrip, "TRAILING": str.rstrip}.get(str(node.args.get("position") or ""), str.strip)
        text, *characters = self._texts("trim", node.this, node.expression)
        return strict(TEXT, strip, text, *(characters or [text_part(" ")]))

    def substring(self, node: exp.Substring) -> Part:
        (text,) = self._texts("substring", node.this)
        start, length = node.args.get("start"), node.args.get("length")
        if start is None:
            raise ExpressionError("substring needs a position or a length")
        counts = [self._count(one, "substring") for one in (start, length) if one is not None]
        return strict(TEXT, computing.substring, text, *counts)

    def end_of_text(self, node: exp.Left | exp.Right) -> Part:
        name, compute = ("left", computing.left) if isinstance(node, exp.Left) else ("right", computing.right)
        (text,) = self._texts(name, node.this)
        return strict(TEXT, compute, text, self._count(node.expression, name))

    def split(self, node: exp.SplitPart) -> Part:
        position = node.args.get("part_index")
        if position is None:
            raise ExpressionError("split_part needs three arguments")
        texts = self._texts("split_part", node.this, node.args.get("delimiter"))
        return strict(TEXT, computing.split_part, *texts, self._count(position, "split_part"))

    def joined(self, node: exp.DPipe) -> Part:
        parts = self.parts(node.left, node.right)
        if not any(part.type in (TEXT, UNKNOWN) for part in parts):
            raise ExpressionError("|| needs a text on one side: cast one to text")
        return strict(TEXT, operator.concat, *(as_text(part, "||") for part in parts))

    def concatenation(self, node: exp.Concat) -> Part:
        texts = [printed(part, "concat").evaluate for part in self.parts(*node.expressions)]
        return Part(TEXT, lambda row: "".join(text for one in texts if (text := one(row)) is not None))

    def separated(self, node: exp.ConcatWs) -> Part:
        first, *others = node.expressions
        (separator,) = (part.evaluate for part in self._texts("concat_ws", first))
        texts = [printed(part, "concat_ws").evaluate for part in self.parts(*others)]
        if not texts:
            raise ExpressionError("concat_ws needs a value after the separator")

        def evaluate(row: Row) -> Value:
            found = [text for one in texts if (text := one(row)) is not None]
            between = separator(row)
            return None if between is None else between.join(found)

        return Part(TEXT, evaluate)

    # ---- dates

    def truncated(self, node: exp.TimestampTrunc) -> Part:
        field = str(node.args["unit"].this).lower()
        compute = computing.TRUNCATIONS.get(field)
        if compute is None:
            raise ExpressionError(
                f"date_trunc has no field {field} here: available are {', '.join(computing.TRUNCATIONS)}"
            )
        part = self.part(node.this)
        if part.type is not TIMESTAMP:
            raise ExpressionError(
                f"date_trunc needs a timestamp without time zone, not {part.type.name}: "
                + ("write … AT TIME ZONE 'UTC'" if part.type is TIMESTAMPTZ else "cast it to timestamp")
            )
        return strict(TIMESTAMP, compute, part)

    def field(self, node: exp.Extract) -> Part:
        if not isinstance(node.this, exp.Var):
            raise ExpressionError("extract needs the name of its field without quotes")
        field, part = str(node.this.this).lower(), self.part(node.expression)
        compute = computing.field(part.type, field)
        if compute is None:
            hint = ": write … AT TIME ZONE 'UTC'" if part.type is TIMESTAMPTZ and field in computing.FIELDS else ""
            raise ExpressionError(f"extract({field} FROM {part.type.name}) is not available{hint}")
        return strict(NUMERIC, compute, part)

    def at_zone(self, node: exp.AtTimeZone) -> Part:
        zone, part = node.args["zone"], self.part(node.this)
        if not isinstance(zone, exp.Literal) or zone.name != "UTC":
            raise ExpressionError("AT TIME ZONE is only available for 'UTC'")
        if part.type not in (TIMESTAMP, TIMESTAMPTZ):
            raise ExpressionError(f"AT TIME ZONE needs a timestamp, not {part.type.name}")
        return Part(TIMESTAMP if part.type is TIMESTAMPTZ else TIMESTAMPTZ, part.evaluate)

    # ---- casts

    def cast(self, node: exp.Cast) -> Part:
        part, (target, digits) = self.part(node.this), cast_target(node.args["to"])
        if part.type is UNKNOWN:
            return self._cast_literal(part, target, digits)
        convert = cast_function(part.type, target)
        if convert is None:
            raise ExpressionError(f"a cast from {part.type.name} to {target.name} is not available")
        return constrained(strict(target, convert, part), digits)

    def _cast_literal(self, part: Part, target: SqlType, digits: tuple[int, int] | None) -> Part:
        if part.text is None or target.family in ("date", "timestamp", "timestamptz"):
            return constrained(converted(part, target), digits)
        convert = cast_function(TEXT, target)
        assert convert is not None, "texts can be cast to every type but dates"
        return constrained(strict(target, convert, converted(part, TEXT)), digits)


def _connected(left: Part, right: Part, *, decides: bool) -> Part:
    """AND and OR: the value `decides` of one of both is that of the whole."""
    if any(part.is_constant and part.evaluate({}) is decides for part in (left, right)):
        return constant(BOOLEAN, decides)  # PostgreSQL's planner does not evaluate the other
    first, second = left.evaluate, right.evaluate

    def evaluate(row: Row) -> Value:
        found = first(row)
        if found is decides:
            return decides
        other = second(row)
        if other is decides:
            return decides
        return None if found is None or other is None else not decides

    return Part(BOOLEAN, evaluate)


def _folded(node: exp.Expr, part: Part) -> Part:
    """Returns the value of a part without columns. PostgreSQL's planner computes it, too, wherever it stands: if that
    fails, it does so for every row."""
    try:
        return constant(part.type, part.evaluate({}), part.modifier)
    except ComputationError as error:
        raise ExpressionError(f"{shown(node)} has no value: {error}") from None


# ---- nodes of the tree: what makes their part, and which arguments they may have

_BINARY: Final = ("this", "expression")
_FLAGS: Final = frozenset(
    {"safe", "typed", "coalesce", "ignore_nulls", "nested"}
)  # of the parser, without a meaning here
_COMPARE: Final[dict[type[exp.Expr], tuple[str, Callable[[Value, Value], bool]]]] = {
    exp.EQ: ("=", operator.eq),
    exp.NEQ: ("<>", operator.ne),
    exp.LT: ("<", operator.lt),
    exp.LTE: ("<=", operator.le),
    exp.GT: (">", operator.gt),
    exp.GTE: (">=", operator.ge),
}
# PostgreSQL's syntax has an order of these, or none, that the parser does not know.
_COMPARISONS: Final = (*_COMPARE, exp.Is, exp.NullSafeEQ, exp.NullSafeNEQ, exp.In, exp.Between)
_ARITHMETIC: Final[
    dict[type[exp.Expr], tuple[str, Callable[[int, int], int], Callable[[Decimal, Decimal], Decimal]]]
] = {
    exp.Add: ("+", operator.add, computing.numeric_sum),
    exp.Sub: ("-", operator.sub, computing.numeric_difference),
    exp.Mul: ("*", operator.mul, computing.numeric_product),
    exp.Div: ("/", computing.divided, computing.numeric_quotient),
    exp.Mod: ("%", computing.remainder, computing.numeric_remainder),
}
_OF_TEXT: Final[dict[type[exp.Expr], tuple[str, SqlType, Callable[..., Value], tuple[str, ...]]]] = {
    exp.Lower: ("lower", TEXT, computing.lower, ("this",)),
    exp.Upper: ("upper", TEXT, computing.upper, ("this",)),
    exp.Length: ("length", INTEGER, len, ("this",)),
    exp.Replace: ("replace", TEXT, computing.replaced, ("this", "expression", "replacement")),
    exp.StrPosition: ("position", INTEGER, lambda text, part: text.find(part) + 1, ("this", "substr")),
    exp.StartsWith: ("starts_with", BOOLEAN, str.startswith, _BINARY),
}
_NODES: Final[dict[type[exp.Expr], tuple[Callable[[_Compiler, Any], Part], tuple[str, ...]]]] = {
    exp.Column: (_Compiler.read_column, ("this",)),
    exp.Literal: (_Compiler.literal, ("this", "is_string")),
    exp.Null: (_Compiler.null, ()),
    exp.Boolean: (_Compiler.boolean, ("this",)),
    exp.Paren: (_Compiler.inside, ("this",)),
    exp.And: (_Compiler.both, _BINARY),
    exp.Or: (_Compiler.either, _BINARY),
    exp.Not: (_Compiler.negation, ("this",)),
    exp.Is: (_Compiler.test, (*_BINARY, "negate")),
    exp.NullSafeEQ: (_Compiler.distinction, _BINARY),
    exp.NullSafeNEQ: (_Compiler.distinction, _BINARY),
    exp.In: (_Compiler.membership, ("this", "expressions")),
    exp.Between: (_Compiler.between, ("this", "low", "high")),
    exp.Case: (_Compiler.case, ("this", "ifs", "default")),
    exp.Coalesce: (_Compiler.coalesce, ("this", "expressions")),
    exp.Greatest: (_Compiler.extreme, ("this", "expressions")),
    exp.Least: (_Compiler.extreme, ("this", "expressions")),
    exp.Nullif: (_Compiler.nullif, _BINARY),
    exp.Neg: (_Compiler.sign, ("this",)),
    exp.Abs: (_Compiler.absolute, ("this",)),
    exp.Round: (_Compiler.rounding, ("this", "decimals")),
    exp.Trunc: (_Compiler.rounding, ("this", "decimals")),
    exp.Ceil: (_Compiler.whole, ("this",)),
    exp.Floor: (_Compiler.whole, ("this",)),
    exp.Trim: (_Compiler.trimmed, (*_BINARY, "position")),
    exp.Substring: (_Compiler.substring, ("this", "start", "length")),
    exp.Left: (_Compiler.end_of_text, _BINARY),
    exp.Right: (_Compiler.end_of_text, _BINARY),
    exp.SplitPart: (_Compiler.split, ("this", "delimiter", "part_index")),
    exp.DPipe: (_Compiler.joined, _BINARY),
    exp.Concat: (_Compiler.concatenation, ("expressions",)),
    exp.ConcatWs: (_Compiler.separated, ("expressions",)),
    exp.TimestampTrunc: (_Compiler.truncated, ("this", "unit")),
    exp.Extract: (_Compiler.field, _BINARY),
    exp.AtTimeZone: (_Compiler.at_zone, ("this", "zone")),
    exp.Cast: (_Compiler.cast, ("this", "to")),
    **dict.fromkeys(_COMPARE, (_Compiler.comparison, _BINARY)),
    **dict.fromkeys(_ARITHMETIC, (_Compiler.arithmetic, _BINARY)),
    **{kind: (_Compiler.of_text, arguments) for kind, (_, _, _, arguments) in _OF_TEXT.items()},
}


def _stored(name: str) -> Evaluate:
    """Returns what reads a column's value in the form of records."""

    def read(row: Row) -> Json:
        try:
            return row[name]
        except KeyError:
            raise MissingColumnError from None

    return read
