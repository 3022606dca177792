"""The syntax of a row condition, as SQL writes it in a WHERE clause. Pure.

    condition  := conjunction (OR conjunction)*
    conjunction:= negation (AND negation)*
    negation   := NOT negation | ( condition ) | predicate
    predicate  := column                                     of type boolean
                | operand (= | <> | != | < | <= | > | >=) operand
                | column [NOT] IN ( literal, … )
                | column IS [NOT] NULL
    operand    := column | literal
    literal    := 'text' | number | TRUE | FALSE

A column's name is folded to lower case unless it is in double quotes. sinks.shaping.condition, which knows the table's
schema, decides which types may be compared. A condition beyond this grammar is an SQL expression
(sinks.shaping.expressions).
"""

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, Literal

Operator = Literal["=", "<>", "<", "<=", ">", ">="]

CONDITION_CHARS_MAX: Final = 4096
DEPTH_MAX: Final = 50  # of parentheses and NOT
_TOKEN: Final = re.compile(
    r"""\s*(?:
    (?P<text>'(?:[^']|'')*')
  | (?P<quoted>"(?:[^"]|"")+")
  | (?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
  | (?P<word>[^\W\d]\w*)
  | (?P<operator><=|>=|<>|!=|=|<|>)
  | (?P<mark>[(),])
)""",
    re.VERBOSE,
)
_KEYWORDS: Final = frozenset({"and", "or", "not", "in", "is", "null", "true", "false"})


@dataclass(frozen=True, slots=True)
class ColumnName:
    name: str


@dataclass(frozen=True, slots=True)
class Constant:
    value: str | Decimal | bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """`left operator right`; at least one of both is a column."""

    left: ColumnName | Constant
    operator: Operator
    right: ColumnName | Constant


@dataclass(frozen=True, slots=True)
class Membership:
    """`column IN (values)`."""

    column: ColumnName
    values: tuple[Constant, ...]


@dataclass(frozen=True, slots=True)
class IsNull:
    column: ColumnName


@dataclass(frozen=True, slots=True)
class IsTrue:
    """A boolean column without an operator."""

    column: ColumnName


@dataclass(frozen=True, slots=True)
class Not:
    part: "Condition"


@dataclass(frozen=True, slots=True)
class Every:
    """`AND`."""

    parts: tuple["Condition", ...]


@dataclass(frozen=True, slots=True)
class Some:
    """`OR`."""

    parts: tuple["Condition", ...]


Condition = Comparison | Membership | IsNull | IsTrue | Not | Every | Some


class BeyondGrammarError(ValueError):
    """The text is no condition of this grammar: it may be an SQL expression. The text says what was expected, and after
    how many characters."""


def parse_condition(text: str) -> Condition:
    """Parses a condition. Raises BeyondGrammarError, and ValueError for what is no condition in any case."""
    if len(text) > CONDITION_CHARS_MAX:
        raise ValueError(f"a condition has at most {CONDITION_CHARS_MAX} characters")
    parser = _Parser(_tokens(text))
    condition = parser.condition()
    parser.expect_end()
    return condition


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str  # text, column, number, keyword, operator, mark, end
    value: str
    at: int


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    at = 0
    while text[at:].strip():
        found = _TOKEN.match(text, at)
        if found is None:
            at += len(text[at:]) - len(text[at:].lstrip())
            raise BeyondGrammarError(f"the condition can't be read from character {at + 1} on")
        kind, value, start = found.lastgroup or "", found[found.lastgroup or 0], found.start(found.lastgroup or 0)
        match kind:
            case "text":
                tokens.append(_Token("text", value[1:-1].replace("''", "'"), start))
            case "quoted":
                tokens.append(_Token("column", value[1:-1].replace('""', '"'), start))
            case "word":
                folded = value.lower()
                tokens.append(_Token("keyword" if folded in _KEYWORDS else "column", folded, start))
            case _:
                tokens.append(_Token(kind, "<>" if value == "!=" else value, start))
        at = found.end()
    return [*tokens, _Token("end", "", len(text))]


class _Parser:
    """Recursive descent over the tokens; each method reads one rule of the grammar."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    def condition(self) -> Condition:
        parts = [self._conjunction()]
        while self._take("keyword", "or"):
            parts.append(self._conjunction())
        return parts[0] if len(parts) == 1 else Some(tuple(parts))

    def expect_end(self) -> None:
        if self._next.kind != "end":
            raise self._unexpected("AND, OR or the end")

    def _conjunction(self) -> Condition:
        parts = [self._negation()]
        while self._take("keyword", "and"):
            parts.append(self._negation())
        return parts[0] if len(parts) == 1 else Every(tuple(parts))

    def _negation(self) -> Condition:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise ValueError(f"the condition is nested more than {DEPTH_MAX} deep")
        try:
            if self._take("keyword", "not"):
                return Not(self._negation())
            if self._take("mark", "("):
                inner = self.condition()
                self._expect("mark", ")")
                return inner
            return self._predicate()
        finally:
            self._depth -= 1

    def _predicate(self) -> Condition:
        left = self._operand()
        if isinstance(left, ColumnName):
            if self._take("keyword", "is"):
                negated = self._take("keyword", "not")
                self._expect("keyword", "null")
                return _negated(IsNull(left), negated)
            negated = self._take("keyword", "not")
            if self._take("keyword", "in"):
                return _negated(Membership(left, self._values()), negated)
            if negated:
                raise self._unexpected("IN")
        if self._next.kind == "operator":
            operator = self._advance().value
            right = self._operand()
            if isinstance(left, Constant) and isinstance(right, Constant):
                raise BeyondGrammarError("a comparison needs a column on at least one side")
            return Comparison(left, operator, right)  # type: ignore[arg-type] # the pattern lists them
        if isinstance(left, ColumnName):
            return IsTrue(left)
        raise self._unexpected("a comparison")

    def _values(self) -> tuple[Constant, ...]:
        self._expect("mark", "(")
        values = [self._constant()]
        while self._take("mark", ","):
            values.append(self._constant())
        self._expect("mark", ")")
        return tuple(values)

    def _constant(self) -> Constant:
        operand = self._operand()
        if isinstance(operand, ColumnName):
            raise BeyondGrammarError(f"the list of IN takes literals, not the column {operand.name}")
        return operand

    def _operand(self) -> ColumnName | Constant:
        token = self._next
        match token.kind, token.value:
            case "column", name:
                self._advance()
                return ColumnName(name)
            case "text", text:
                self._advance()
                return Constant(text)
            case "number", number:
                self._advance()
                return Constant(Decimal(number))
            case "keyword", ("true" | "false") as word:
                self._advance()
                return Constant(word == "true")
            case "keyword", "null":
                raise ValueError("nothing is equal to NULL: write IS NULL or IS NOT NULL")
        raise self._unexpected("a column, a text in single quotes, a number, TRUE or FALSE")

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _advance(self) -> _Token:
        token = self._next
        self._at += 1
        return token

    def _take(self, kind: str, value: str) -> bool:
        is_it = self._next.kind == kind and self._next.value == value
        self._at += is_it
        return is_it

    def _expect(self, kind: str, value: str) -> None:
        if not self._take(kind, value):
            raise self._unexpected(value.upper())

    def _unexpected(self, wanted: str) -> BeyondGrammarError:
        token = self._next
        where = "at the end" if token.kind == "end" else f"at character {token.at + 1}"
        return BeyondGrammarError(f"the condition needs {wanted} {where}")


def _negated(condition: Condition, is_negated: bool) -> Condition:
    return Not(condition) if is_negated else condition


def columns_of(condition: Condition) -> frozenset[str]:
    """The names of all columns that the condition reads."""
    match condition:
        case Comparison(left, _, right):
            return frozenset(operand.name for operand in (left, right) if isinstance(operand, ColumnName))
        case Membership(column, _) | IsNull(column) | IsTrue(column):
            return frozenset({column.name})
        case Not(part):
            return columns_of(part)
        case Every(parts) | Some(parts):
            return frozenset().union(*map(columns_of, parts))
