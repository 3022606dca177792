"""The text of a column of a query as it was written: what the parser writes again may have another meaning."""

from collections.abc import Callable
from typing import Final

from sqlglot import Token, TokenType, exp, parse_one, tokenize
from sqlglot.errors import SqlglotError

from watershed.views.refusals import DIALECT

_OPENING: Final = (TokenType.L_PAREN, TokenType.L_BRACKET)
_CLOSING: Final = (TokenType.R_PAREN, TokenType.R_BRACKET)
_BEFORE: Final = (TokenType.COMMA, TokenType.SELECT, TokenType.DISTINCT, TokenType.ALL)


def as_written(text: str, projection: exp.Expr, renamed: Callable[[exp.Column], str], rewritten: exp.Expr) -> str:
    """Returns the expression of a column, `expression AS name`, from the query's text, with its columns renamed;
    `rewritten` is what the parser makes of it, and is returned where the text can't be found."""
    again = rewritten.sql(DIALECT)
    name = projection.args.get("alias")
    if not isinstance(projection, exp.Alias) or not isinstance(name, exp.Identifier) or "start" not in name.meta:
        return again
    span = _before(tokenize(text, dialect=DIALECT), name.meta["start"])
    columns = list(projection.this.find_all(exp.Column))
    if span is None or any("start" not in column.this.meta for column in columns):
        return again
    start, end = span
    found, at = "", start
    for column in sorted(columns, key=lambda one: int(one.this.meta["start"])):
        first = min(part.meta["start"] for part in column.parts if "start" in part.meta)
        found += text[at:first] + renamed(column)
        at = column.this.meta["end"] + 1
    found += text[at:end]
    try:
        is_same = parse_one(f"SELECT {found}", dialect=DIALECT).expressions[0].sql(DIALECT) == again
    except SqlglotError:
        return again
    return found if is_same else again


def _before(tokens: list[Token], name: int) -> tuple[int, int] | None:
    """The place at which the expression before a name begins, and its end."""
    number = next((number for number, token in enumerate(tokens) if token.start == name), 0) - 1
    if number > 0 and tokens[number].token_type is TokenType.ALIAS:
        number -= 1
    end, depth = tokens[number].end + 1, 0
    first: Token | None = None
    while number >= 0:
        token = tokens[number]
        if depth == 0 and (token.token_type in _BEFORE or token.token_type in _OPENING):
            break
        depth += (token.token_type in _CLOSING) - (token.token_type in _OPENING)
        first = token
        number -= 1
    return None if first is None else (first.start, end)
