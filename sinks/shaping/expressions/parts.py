"""Parts of an expression: their types, literals, conversions and casts. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Final

from sqlglot import ErrorLevel, exp
from sqlglot.errors import SqlglotError

from sinks.contract import Json
from sinks.shaping.expressions import computing
from sinks.shaping.expressions.types import (
    BIGINT,
    BOOLEAN,
    DATE,
    INTEGER,
    NUMBERS,
    NUMERIC,
    SMALLINT,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
    UNKNOWN,
    ExpressionError,
    SqlType,
    Value,
    integer,
    number,
)

Row = Mapping[str, Json]
Evaluate = Callable[[Row], Value]
_NUMERIC_PRECISION_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an expression. Values are those of the type, see sinks.shaping.expressions.types."""

    type: SqlType
    evaluate: Evaluate
    modifier: int = -1  # of numeric(p,s), as in pg_attribute
    is_constant: bool = False  # it reads no column
    is_null: bool = False  # it is constant, and NULL
    text: str | None = None  # of a text in quotes whose type is not known yet


def shown(node: exp.Expr) -> str:
    """Returns a part of the text for an error."""
    try:
        return node.sql(dialect="postgres", comments=False, unsupported_level=ErrorLevel.IGNORE)[:80]
    except SqlglotError:  # what is incomplete can't be written
        return node.key


def constant(type_: SqlType, value: Value, modifier: int = -1) -> Part:
    return Part(type_, lambda _: value, modifier, is_constant=True, is_null=value is None)


NULL: Final = constant(UNKNOWN, None)


def text_literal(text: str) -> Part:
    return replace(text_part(text), type=UNKNOWN, text=text)


def text_part(text: str) -> Part:
    return constant(TEXT, text)


def number_literal(text: str) -> Part:
    """The type of a literal is the first that holds it of integer, bigint and numeric."""
    if text.lstrip("-").isdigit():
        value = int(text)
        for type_, bits in ((INTEGER, 32), (BIGINT, 64)):
            if -(1 << bits - 1) <= value < 1 << bits - 1:
                return constant(type_, value)
    try:
        exact = number(Decimal(text))
    except ArithmeticError:
        raise ExpressionError(f"{text} is not a number that numeric can have") from None
    return constant(NUMERIC, exact)


def strict(type_: SqlType, compute: Callable[..., Value], *parts: Part) -> Part:
    """The value of a function that is NULL if one of its arguments is."""
    if any(part.is_null for part in parts):  # PostgreSQL's planner does not evaluate the others either
        return constant(type_, None)
    is_constant = all(part.is_constant for part in parts)
    if len(parts) == 1:
        (one,) = (part.evaluate for part in parts)

        def of_one(row: Row) -> Value:
            value = one(row)
            return None if value is None else compute(value)

        return Part(type_, of_one, is_constant=is_constant)
    arguments = [part.evaluate for part in parts]

    def of_several(row: Row) -> Value:
        values = [argument(row) for argument in arguments]
        return None if None in values else compute(*values)

    return Part(type_, of_several, is_constant=is_constant)


def is_word_null(part: Part) -> bool:
    """Says whether it is NULL of no type."""
    return part.is_null and part.type is UNKNOWN


def boolean_part(part: Part, where: str) -> Part:
    if part.type is not BOOLEAN and not is_word_null(part):
        raise ExpressionError(f"{where} needs a boolean, not {part.type.name}")
    return part


def number_part(part: Part, where: str) -> Part:
    if is_word_null(part):
        raise ExpressionError(f"{where} of NULL is always NULL")
    if part.type.family != "number":
        hint = ": write the number without quotes" if part.text is not None else ""
        raise ExpressionError(f"{where} needs a number, not {part.type.name}{hint}")
    return part


def number_parts(parts: Sequence[Part], where: str) -> list[Part]:
    """Returns numbers in the type that holds those of all."""
    known = [number_part(part, where) for part in parts]
    wanted = max((part.type for part in known), key=NUMBERS.index)
    return [converted(part, wanted) for part in known]


def common(parts: Sequence[Part], where: str) -> tuple[SqlType, list[Part]]:
    """Returns the type that values of several parts have together, and the parts in this type. A numeric is one without
    limits, also if all have the same: a column's limits can be widened without a change of its rows, and a store could
    not take the rows of before into a type with limits."""
    types = list(dict.fromkeys(part.type for part in parts if part.type is not UNKNOWN))
    if not types:
        wanted = TEXT
    elif all(type_.family == "number" for type_ in types):
        wanted = max(types, key=NUMBERS.index)
    elif len(types) == 1:
        wanted = types[0]
    elif {*types} == {DATE, TIMESTAMP}:
        wanted = TIMESTAMP
    else:
        raise ExpressionError(f"{where}: {types[0].name} and {types[1].name} have no common type: cast one of them")
    if wanted.family in ("label", "other"):
        hint = "cast it to text" if wanted.family == "label" else "such values can only be tested with IS NULL"
        raise ExpressionError(f"{where} is not available for {wanted.name}: {hint}")
    return wanted, [converted(part, wanted) for part in parts]


def alike(parts: Sequence[Part], where: str) -> list[Part]:
    """Returns parts that are compared with each other, in one type."""
    return common(parts, where)[1]


def converted(part: Part, wanted: SqlType) -> Part:
    """Returns the part in a type to which PostgreSQL converts it without a cast."""
    if part.type is wanted:
        return part
    if part.is_null:
        return replace(part, type=wanted)
    if part.text is not None:
        return _typed_literal(part.text, wanted)
    if wanted is NUMERIC:
        return strict(NUMERIC, Decimal, part)
    if wanted is TIMESTAMP and part.type is DATE:
        return strict(TIMESTAMP, computing.timestamp_of_date, part)
    assert part.type.family == wanted.family == "number", "others were refused"
    return replace(part, type=wanted)


def _typed_literal(text: str, wanted: SqlType) -> Part:
    if wanted is TEXT:
        return text_part(text)
    needed = {
        DATE: "a date such as '2026-01-31'",
        TIMESTAMP: "a timestamp such as '2026-01-31 12:00:00'",
    }
    try:
        if wanted is DATE:
            return constant(DATE, computing.date_of_literal(text))
        if wanted is TIMESTAMP:
            return constant(TIMESTAMP, computing.timestamp_of_literal(text))
    except ValueError:
        pass
    if wanted is TIMESTAMPTZ:
        raise ExpressionError("write a timestamp with time zone as TIMESTAMP '2026-01-31 12:00:00' AT TIME ZONE 'UTC'")
    what = needed.get(wanted) or ("TRUE or FALSE" if wanted is BOOLEAN else "a number without quotes")
    raise ExpressionError(f"'{text}' stands where {wanted.name} is needed: write {what}")


def date_arithmetic(left: Part, right: Part, symbol: str) -> Part:
    if symbol == "-" and left.type is right.type is DATE:
        return strict(INTEGER, lambda first, second: (first - second).days, left, right)
    if symbol == "+" and right.type is DATE:
        left, right = right, left
    if left.type is DATE and right.type in (SMALLINT, INTEGER):
        sign = -1 if symbol == "-" else 1
        return strict(DATE, lambda day, days: computing.date_after(day, sign * days), left, right)
    raise ExpressionError(f"{left.type.name} {symbol} {right.type.name} is not available")


def as_text(part: Part, where: str) -> Part:
    """Returns the part cast to text, as || does it."""
    if part.type is UNKNOWN:
        return converted(part, TEXT)
    convert = cast_function(part.type, TEXT)
    if convert is None:
        raise ExpressionError(f"{where} is not available for {part.type.name}")
    return strict(TEXT, convert, part)


def printed(part: Part, where: str) -> Part:
    """Returns the part as concat prints it: booleans as t and f."""
    if part.type is BOOLEAN:
        return strict(TEXT, lambda value: "t" if value else "f", part)
    return as_text(part, where)


# ---- casts

_TARGETS: Final = {
    exp.DataType.Type.BOOLEAN: BOOLEAN,
    exp.DataType.Type.SMALLINT: SMALLINT,
    exp.DataType.Type.INT: INTEGER,
    exp.DataType.Type.BIGINT: BIGINT,
    exp.DataType.Type.DECIMAL: NUMERIC,
    exp.DataType.Type.TEXT: TEXT,
    exp.DataType.Type.VARCHAR: TEXT,
    exp.DataType.Type.DATE: DATE,
    exp.DataType.Type.TIMESTAMP: TIMESTAMP,
}


def cast_target(to: exp.Expr) -> tuple[SqlType, tuple[int, int] | None]:
    """Returns the type of a cast, and precision and scale of a numeric."""
    found = _TARGETS.get(to.this) if isinstance(to, exp.DataType) else None
    parameters = [one.this.name for one in to.expressions if isinstance(one, exp.DataTypeParam)]
    if found is None or (parameters and found is not NUMERIC) or len(parameters) != len(to.expressions):
        names = "boolean, smallint, integer, bigint, numeric, numeric(p,s), text, date, timestamp"
        raise ExpressionError(f"a cast to {shown(to)} is not available: available are {names}")
    if not parameters:
        return found, None
    if not all(one.isdecimal() for one in parameters):
        raise ExpressionError(f"{shown(to)} is not available")
    precision, scale = int(parameters[0]), int(parameters[1]) if len(parameters) > 1 else 0
    if not 0 <= scale <= precision or not 1 <= precision <= _NUMERIC_PRECISION_MAX:
        raise ExpressionError(f"numeric({precision},{scale}) is not available")
    return found, (precision, scale)


def constrained(part: Part, digits: tuple[int, int] | None) -> Part:
    if digits is None:
        return part
    precision, scale = digits
    made = strict(NUMERIC, lambda value: computing.constrained(value, precision, scale), part)
    return replace(made, modifier=(precision << 16 | scale) + 4)


def cast_function(held: SqlType, wanted: SqlType) -> Callable[[Value], Value] | None:
    """Returns what casts a value; None if it is not available."""
    if held.family == "other":
        return None
    if held is wanted or (held.family == "label" and wanted is TEXT):
        return lambda value: value
    is_integer = wanted.family == "number" and wanted is not NUMERIC
    match held.family, wanted.family:
        case "text", "number" if is_integer:
            return lambda value: integer(wanted, computing.integer_of_text(value))
        case "text", "number":
            return computing.numeric_of_text
        case "text", "boolean":
            return computing.boolean_of_text
        case "number", "number" if not is_integer:
            return Decimal
        case "number", "number" if held is NUMERIC:
            return lambda value: integer(wanted, int(computing.rounded_to(value, 0)))
        case "number", "number":
            return lambda value: integer(wanted, value)
        case (("number" | "boolean"), "text"):
            return computing.text_of(held)
        case "number", "boolean" if held is INTEGER:
            return bool
        case "boolean", "number" if wanted is INTEGER:
            return int
        case "date", "timestamp":
            return computing.timestamp_of_date
        case "timestamp", "date":
            return lambda value: value.date()
    return None
