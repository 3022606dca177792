"""The text of a view's query as a tree: its tables, and its columns under the aliases of their tables. PostgreSQL runs
the text as it was written; the tree only serves to derive which rows a change concerns."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sqlglot import Token, TokenType, exp, parse, parse_one, tokenize
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.normalize_identifiers import normalize_identifiers
from sqlglot.optimizer.qualify import qualify
from sqlglot.schema import MappingSchema

from cdc.model.errors import ConfigError
from cdc.model.events import TableId
from watershed.views.dialects import advice
from watershed.views.refusals import DIALECT

_LAST_SCHEMA: Final = "public"  # of a table without one
WRITE: Final = "write one SELECT in PostgreSQL's SQL"
# Functions in FROM whose columns do not have the name of the alias.
_OWN_COLUMNS: Final = {
    "jsonb_array_elements": ("value",),
    "json_array_elements": ("value",),
    "jsonb_array_elements_text": ("value",),
    "json_array_elements_text": ("value",),
    "jsonb_each": ("key", "value"),
    "json_each": ("key", "value"),
    "jsonb_each_text": ("key", "value"),
    "json_each_text": ("key", "value"),
}


class Named(NamedTuple):
    """A place of the query's text that names a table."""

    table: TableId
    has_alias: bool
    name: str


def pieces(text: str, tree: exp.Expression) -> tuple[str | Named, ...]:
    """PostgreSQL runs the text as it was written: what the parser would write may have another meaning."""
    found: list[str | Named] = []
    at = 0
    ctes = {cte.alias for cte in tree.find_all(exp.CTE)}
    tables = [table for table in named(tree) if table.db or table.name not in ctes]
    for table in sorted(tables, key=lambda one: int(one.this.meta["start"])):
        first = table.args.get("db") or table.this
        found += [text[at : first.meta["start"]], Named(table_of(table), bool(table.alias), table.name)]
        at = table.this.meta["end"] + 1
    last = [token for token in tokenize(text, dialect=DIALECT) if token.token_type is not TokenType.SEMICOLON][-1]
    return (*found, text[at : last.end + 1])


def named(tree: exp.Expression) -> list[exp.Table]:
    """Returns the tables and parts of a WITH that a query names; the parser has functions in FROM as tables, too."""
    return [table for table in tree.find_all(exp.Table) if isinstance(table.this, exp.Identifier)]


def table_of(table: exp.Table) -> TableId:
    """The table that a query names; without a schema it is one of `public`."""
    return TableId(table.db or _LAST_SCHEMA, table.name)


def base_tables(tree: exp.Expression) -> list[exp.Table]:
    """Returns the places of a query that name tables of the base."""
    ctes = {cte.alias for cte in tree.find_all(exp.CTE)}
    return [table for table in named(tree) if table.db or table.name not in ctes]


def named_tables(name: str, text: str) -> tuple[TableId, ...]:
    """Returns the tables that the query of a view names, whether they exist or not. Raises ConfigError for text that is
    not one SELECT."""
    return tuple(dict.fromkeys(table_of(table) for table in base_tables(parsed(f"view {name}", text))))


def parsed(where: str, text: str) -> exp.Expression:
    """The tree of a query, in which names without quotes are in lower case."""
    try:
        statements = [one for one in parse(text, dialect=DIALECT) if one is not None]
    except SqlglotError as error:
        message = str(error).partition("\n")[0]
        raise ConfigError(f"{where}: its sql can't be read: {message}", advice(text) or WRITE) from None
    if len(statements) != 1 or not isinstance(statements[0], exp.Select | exp.SetOperation):
        raise ConfigError(f"{where}: its sql is not one SELECT", WRITE)
    return normalize_identifiers(statements[0], dialect=DIALECT)


def qualified(where: str, tree: exp.Expression, columns: Mapping[TableId, Sequence[str]], text: str) -> exp.Expression:
    """The query with every column under its table's alias, and every `*` written out."""
    _check_tables(where, tree, columns)
    copy = tree.copy()
    for table in base_tables(copy):
        if not table.db:
            table.set("db", exp.to_identifier(_LAST_SCHEMA, quoted=True))
        if not table.alias:
            table.set("alias", exp.TableAlias(this=exp.to_identifier(table.name, quoted=True)))
    _name_functions(copy)
    _leave_out_aliases(copy, {name for names in columns.values() for name in names})
    for call in copy.find_all(exp.Coalesce):
        call.meta["is_written"] = True
    for identifier in copy.find_all(exp.Identifier):
        identifier.set("quoted", True)  # it has its case
    known: dict[str, Any] = {}
    for table_id, names in columns.items():
        known.setdefault(table_id.schema, {})[table_id.name] = dict.fromkeys(names, "text")
    schema = MappingSchema(known, dialect=DIALECT, normalize=False)
    try:
        tree = qualify(copy, schema=schema, dialect=DIALECT, validate_qualify_columns=True, expand_alias_refs=False)
    except SqlglotError as error:
        message = str(error).partition(chr(10))[0]
        raise ConfigError(f"{where}: {message}", advice(text) or "correct the names of its columns") from None
    for call in list(tree.find_all(exp.Coalesce)):
        if not call.meta.get("is_written"):
            call.replace(call.this)  # a column of USING: in an inner or left join it is the left table's
    return tree


def _check_tables(where: str, tree: exp.Expression, columns: Mapping[TableId, Sequence[str]]) -> None:
    if any(with_.args.get("recursive") for with_ in tree.find_all(exp.With)):
        raise ConfigError(
            f"{where}: WITH RECURSIVE can't be traced to a key",
            "join the table with itself once for each level; or keep the pairs of ancestor and descendant in a table "
            "of the source, and join that one",
        )
    ctes = Counter(cte.alias for cte in tree.find_all(exp.CTE))
    references = Counter(table.name for table in named(tree) if not table.db and table.name in ctes)
    for cte in tree.find_all(exp.CTE):
        if any(not table.db and table.name == cte.alias for table in named(cte)):
            raise ConfigError(
                f"{where}: {cte.alias} of its WITH has the name of a table that it reads", "give it another name"
            )
    for name in ctes:
        # Two uses of one subquery would be one occurrence, with the links of both.
        if ctes[name] > 1 or references[name] > 1:
            raise ConfigError(f"{where}: it uses {name} of its WITH more than once", "write the subquery in each place")
        if not references[name]:
            raise ConfigError(f"{where}: it does not use {name} of its WITH", "leave it out")
    for table in base_tables(tree):
        if table_of(table) not in columns:
            raise ConfigError(
                f"{where}: it reads {table_of(table)}, which its base does not hold",
                f"the base holds {', '.join(map(str, columns)) or 'no table'}; write schema.table",
            )
    if any(join.method == "NATURAL" for join in tree.find_all(exp.Join)):
        # A column that is added to both tables would change what they are joined by.
        raise ConfigError(f"{where}: NATURAL JOIN joins by columns that may be added later", "write JOIN ... USING")
    if column := next((column for column in tree.find_all(exp.Column) if column.args.get("db")), None):
        # The base may hold the table in another schema.
        raise ConfigError(
            f"{where}: {column.sql(DIALECT)} has the schema of its table", f"write {column.table}.{column.name}"
        )


def _name_functions(tree: exp.Expression) -> None:
    """Has each function in FROM as the parser has LATERAL, with names of its columns as PostgreSQL gives them."""
    found = [table for table in tree.find_all(exp.Table) if isinstance(table.this, exp.Func)]
    for source in (*found, *tree.find_all(exp.Unnest, exp.Lateral)):
        is_lateral = isinstance(source, exp.Lateral)
        if is_lateral and not isinstance(source.this, exp.Func):
            continue
        if not is_lateral and not isinstance(source.parent, exp.From | exp.Join):
            continue
        call: exp.Expr = source.copy() if isinstance(source, exp.Unnest) else source.this
        alias = source.args.get("alias")
        if isinstance(source, exp.Unnest):
            call.set("alias", None)
        offset = source.args.get("offset") or call.args.get("offset")
        has_ordinality = bool(source.args.get("ordinality") or offset)
        call.set("offset", None)
        function = call.name.lower() if isinstance(call, exp.Anonymous) else call.sql(DIALECT).partition("(")[0].lower()
        name: exp.Identifier = alias.this if alias is not None and alias.this else exp.to_identifier(function)
        given = [one.this if isinstance(one, exp.ColumnDef) else one for one in (alias.columns if alias else ())]
        if isinstance(offset, exp.Identifier):
            given.append(offset)
        own = [exp.to_identifier(one) for one in _OWN_COLUMNS.get(function, (name.name,))]
        lateral = exp.Lateral(
            this=call,
            alias=exp.TableAlias(this=name.copy(), columns=[one.copy() for one in (given or own)]),
            ordinality=has_ordinality,
        )
        source.replace(lateral)


def _leave_out_aliases(tree: exp.Expression, columns: set[str]) -> None:
    """Leaves names of results out of GROUP BY: what they stand for is in the SELECT list. PostgreSQL takes a name there
    for a column first."""
    known = columns | {
        one.alias for inner in tree.find_all(exp.Select) if inner is not tree for one in inner.expressions
    }
    known |= {one.name for alias in tree.find_all(exp.TableAlias) for one in alias.columns}
    for select in tree.find_all(exp.Select):
        group = select.args.get("group")
        if group is None:
            continue
        aliases = {one.alias for one in select.expressions if isinstance(one, exp.Alias)}
        group.set(
            "expressions",
            [
                one
                for one in group.expressions
                if not (isinstance(one, exp.Column) and not one.table and one.name in aliases - known)
            ],
        )


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
