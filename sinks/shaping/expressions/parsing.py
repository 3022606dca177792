"""Reads an expression as PostgreSQL does, by sqlglot. Words and signs that the parser knows and expressions lack are
refused here: it takes functions of other databases, too, and forgets what they were called. Pure.
"""

from typing import Final

from sqlglot import Token, TokenType, exp, parse, tokenize
from sqlglot.errors import SqlglotError

from sinks.shaping.expressions.functions import FUNCTIONS
from sinks.shaping.expressions.types import ExpressionError

DIALECT: Final = "postgres"
EXPRESSION_CHARS_MAX: Final = 4096
_SIGNS: Final = frozenset(["+", "-", "*", "/", "%", "||", "=", "<>", "!=", "<", "<=", ">", ">=", "(", ")", ",", "::"])
# Words that may come before a parenthesis and are no functions.
_WORDS: Final = frozenset(
    [
        *("and", "or", "not", "in", "is", "case", "when", "then", "else", "between", "from", "for", "distinct", "as"),
        *("both", "leading", "trailing", "numeric", "decimal", "varchar", "char", "timestamp"),
    ]
)
_TEXTS: Final = frozenset({TokenType.STRING, TokenType.IDENTIFIER})
AVAILABLE: Final = (
    f"available are {', '.join(sorted({*FUNCTIONS} - {'cast'}))}, CAST, CASE, AND, OR, NOT, IN, BETWEEN, IS NULL, "
    "IS TRUE, IS DISTINCT FROM, AT TIME ZONE 'UTC', + - * / % || = <> < <= > >="
)


def parsed(text: str) -> exp.Expr:
    """Returns the expression's tree. Raises ExpressionError."""
    if len(text) > EXPRESSION_CHARS_MAX:
        raise ExpressionError(f"an expression has at most {EXPRESSION_CHARS_MAX} characters")
    try:
        tokens = tokenize(text, dialect=DIALECT)
        _check(tokens)
        found = parse(text, dialect=DIALECT)
    except SqlglotError as error:
        details = getattr(error, "errors", None) or [{}]
        what, column = str(details[0].get("description") or error), details[0].get("col")
        where = f" near character {column}" if column and "\n" not in text else ""
        if what.startswith("Required keyword"):
            what = "an operand or argument is missing"
        raise ExpressionError(f"it can't be read{where}: {what.strip().rstrip('.')}") from None
    except RecursionError:
        raise ExpressionError("it is nested too deep") from None
    if len(found) != 1 or found[0] is None:
        raise ExpressionError("it is not one expression")
    return found[0]


def _check(tokens: list[Token]) -> None:
    for number, token in enumerate(tokens):
        word = token.text.lower()
        following = tokens[number + 1] if number + 1 < len(tokens) else None
        if token.token_type in _TEXTS:
            continue
        if token.token_type is TokenType.DOT:
            if following is not None and following.token_type is TokenType.NUMBER:
                continue  # .5
            raise ExpressionError("a column's name stands alone, without its table")
        if token.token_type is not TokenType.NUMBER and not word.replace("_", "a").isalnum() and word not in _SIGNS:
            raise ExpressionError(f"{token.text} is not available")
        is_called = following is not None and following.token_type is TokenType.L_PAREN
        if is_called and word[0].isalpha() and word not in FUNCTIONS and word not in _WORDS:
            raise ExpressionError(f"{word}(…) is not available: {AVAILABLE}")
        if word == "date_trunc" and is_called:
            field = tokens[number + 2] if number + 2 < len(tokens) else None
            if field is None or field.token_type is not TokenType.STRING:
                raise ExpressionError("date_trunc needs its field as a text, such as 'month'")
