"""The functions of expressions, as users find them in the documentation and in errors. Pure."""

from typing import Final, NamedTuple


class Function(NamedTuple):
    """A function, or another form with a name and parentheses."""

    form: str
    meaning: str
    example: str  # an expression without columns
    result: str | int | bool | None  # its value, as records have it


FUNCTIONS: Final[dict[str, Function]] = {
    "abs": Function("abs(number)", "Without its sign.", "abs(-1.50)", "1.50"),
    "btrim": Function("btrim(text [, characters])", "The same as `trim`.", "btrim('xyax', 'xy')", "a"),
    "cast": Function(
        "cast(value AS type), value::type", "See the types above.", "cast('12.5' AS numeric(6,2))", "12.50"
    ),
    "ceil": Function("ceil(numeric)", "The next whole number, upwards.", "ceil(1.2)", "2"),
    "ceiling": Function("ceiling(numeric)", "The same as `ceil`.", "ceiling(-1.2)", "-1"),
    "char_length": Function("char_length(text)", "The same as `length`.", "char_length('Zoë')", 3),
    "character_length": Function("character_length(text)", "The same as `length`.", "character_length('')", 0),
    "coalesce": Function("coalesce(value, …)", "The first value that is not NULL.", "coalesce(NULL, 'a')", "a"),
    "concat": Function(
        "concat(value, …)", "Values as text, one after the other, without NULLs.", "concat('a', NULL, 1)", "a1"
    ),
    "concat_ws": Function(
        "concat_ws(separator, value, …)", "The same, with a separator.", "concat_ws(', ', 'a', NULL, 'b')", "a, b"
    ),
    "date_trunc": Function(
        "date_trunc(field, timestamp)",
        "The timestamp at which its second, minute, hour, day, week, month, quarter or year began. "
        "One with time zone: `date_trunc('day', t AT TIME ZONE 'UTC')`.",
        "date_trunc('week', TIMESTAMP '2026-01-31 12:00:00')",
        "2026-01-26T00:00:00",
    ),
    "extract": Function(
        "extract(field FROM value)",
        "A part of a date or timestamp: year, isoyear, quarter, month, week, day, doy, dow, isodow, hour, minute, "
        "second, epoch. Of a timestamp with time zone only epoch.",
        "extract(quarter FROM DATE '2026-05-01')",
        "2",
    ),
    "floor": Function("floor(numeric)", "The next whole number, downwards.", "floor(-1.2)", "-2"),
    "greatest": Function("greatest(value, …)", "The greatest, without NULLs.", "greatest(1, NULL, 2.5)", "2.5"),
    "least": Function("least(value, …)", "The least, without NULLs.", "least('b', 'a')", "a"),
    "left": Function(
        "left(text, count)", "The first characters; all but the last if negative.", "left('abcd', -1)", "abc"
    ),
    "length": Function("length(text)", "The number of characters.", "length('Zoë ')", 4),
    "lower": Function("lower(text)", "In small letters.", "lower('Total')", "total"),
    "ltrim": Function("ltrim(text [, characters])", "Without them at the beginning.", "ltrim('xxa', 'x')", "a"),
    "mod": Function("mod(number, number)", "The rest of a division, as with `%`.", "mod(-7, 4)", -3),
    "nullif": Function("nullif(value, value)", "NULL if both are equal, else the first.", "nullif('', '')", None),
    "position": Function(
        "position(part IN text)", "Where the part begins, from 1; 0: nowhere.", "position('c' IN 'abc')", 3
    ),
    "replace": Function("replace(text, part, by)", "With each such part replaced.", "replace('a-b-c', '-', '')", "abc"),
    "right": Function(
        "right(text, count)", "The last characters; all but the first if negative.", "right('abcd', 2)", "cd"
    ),
    "round": Function(
        "round(numeric), round(number, digits)", "Rounded, halves away from zero.", "round(-2.345, 2)", "-2.35"
    ),
    "rtrim": Function("rtrim(text [, characters])", "Without them at the end.", "rtrim('1.500', '0')", "1.5"),
    "split_part": Function(
        "split_part(text, separator, n)",
        "The n-th part; from the end if negative.",
        "split_part('a,b,c', ',', -1)",
        "c",
    ),
    "starts_with": Function("starts_with(text, part)", "Whether the text begins so.", "starts_with('abc', 'ab')", True),
    "strpos": Function("strpos(text, part)", "The same as `position`.", "strpos('abc', 'x')", 0),
    "substr": Function("substr(text, start [, length])", "The same as `substring`.", "substr('abcd', 3)", "cd"),
    "substring": Function(
        "substring(text [FROM start] [FOR length])",
        "A part; positions begin with 1.",
        "substring('abcd' FROM 2 FOR 2)",
        "bc",
    ),
    "trim": Function(
        "trim([LEADING | TRAILING | BOTH] [characters] FROM text), trim(text)",
        "Without spaces, or these characters, at its ends.",
        "trim(BOTH 'x' FROM 'xax')",
        "a",
    ),
    "trunc": Function("trunc(numeric), trunc(number, digits)", "Rounded towards zero.", "trunc(-2.349, 2)", "-2.34"),
    "upper": Function("upper(text)", "In capital letters.", "upper('straße')", "STRAßE"),
}
