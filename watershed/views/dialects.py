"""Advice for SQL of other databases: what PostgreSQL has instead."""

import re
from typing import Final

_INSTEAD: Final = {
    "nvl": "coalesce(a, b)",
    "nvl2": "CASE WHEN a IS NOT NULL THEN b ELSE c END",
    "ifnull": "coalesce(a, b)",
    "isnull": "coalesce(a, b), or a IS NULL",
    "if": "CASE WHEN a THEN b ELSE c END",
    "iif": "CASE WHEN a THEN b ELSE c END",
    "decode": "CASE a WHEN b THEN c ELSE d END",
    "date_format": "to_char(a, 'YYYY-MM-DD')",
    "format_date": "to_char(a, 'YYYY-MM-DD')",
    "format_timestamp": "to_char(a, 'YYYY-MM-DD')",
    "str_to_date": "to_date(a, 'YYYY-MM-DD')",
    "parse_date": "to_date(a, 'YYYY-MM-DD')",
    "datediff": "a::date - b::date",
    "date_diff": "a::date - b::date",
    "timestampdiff": "extract(epoch FROM a - b)",
    "timestamp_diff": "extract(epoch FROM a - b)",
    "date_add": "a + interval '1 day'",
    "date_sub": "a - interval '1 day'",
    "dateadd": "a + interval '1 day'",
    "add_months": "a + interval '1 month'",
    "months_between": "age(a, b)",
    "last_day": "(date_trunc('month', a) + interval '1 month - 1 day')::date",
    "year": "extract(year FROM a)::int",
    "month": "extract(month FROM a)::int",
    "day": "extract(day FROM a)::int",
    "dayofmonth": "extract(day FROM a)::int",
    "dayofweek": "extract(dow FROM a)::int",
    "weekofyear": "extract(week FROM a)::int",
    "hour": "extract(hour FROM a)::int",
    "quarter": "extract(quarter FROM a)::int",
    "unix_timestamp": "extract(epoch FROM a)",
    "from_unixtime": "to_timestamp(a)",
    "timestamp_trunc": "date_trunc('day', a)",
    "trunc_date": "date_trunc('day', a)",
    "group_concat": "string_agg(a, ',' ORDER BY a)",
    "listagg": "string_agg(a, ',' ORDER BY a)",
    "wm_concat": "string_agg(a, ',' ORDER BY a)",
    "collect_list": "array_agg(a ORDER BY b), or jsonb_agg(a ORDER BY b)",
    "collect_set": "array_agg(DISTINCT a ORDER BY a)",
    "named_struct": "jsonb_build_object('name', a)",
    "struct": "jsonb_build_object('name', a)",
    "to_json_string": "to_jsonb(a)::text",
    "to_json": "to_jsonb(a)",
    "get_json_object": "a ->> 'name'",
    "json_extract_scalar": "a ->> 'name'",
    "json_value": "a ->> 'name'",
    "json_extract": "a -> 'name'",
    "json_object": "jsonb_build_object('name', a)",
    "json_arrayagg": "jsonb_agg(a ORDER BY b)",
    "json_objectagg": "jsonb_object_agg(name, a ORDER BY name)",
    "explode": "CROSS JOIN LATERAL unnest(a) AS e(value)",
    "posexplode": "CROSS JOIN LATERAL unnest(a) WITH ORDINALITY",
    "inline": "CROSS JOIN LATERAL jsonb_array_elements(a)",
    "split": "string_to_array(a, ',')",
    "size": "cardinality(a)",
    "array_contains": "b = ANY (a)",
    "instr": "strpos(a, b)",
    "locate": "strpos(b, a)",
    "charindex": "strpos(b, a)",
    "len": "length(a)",
    "regexp_extract": "substring(a FROM 'pattern')",
    "rlike": "a ~ 'pattern'",
    "regexp_contains": "a ~ 'pattern'",
    "safe_divide": "a / nullif(b, 0)",
    "safe_cast": "a::type",
    "try_cast": "a::type",
    "convert": "a::type",
    "to_varchar": "a::text",
    "countif": "count(*) FILTER (WHERE a)",
    "count_if": "count(*) FILTER (WHERE a)",
    "sumif": "sum(a) FILTER (WHERE b)",
    "approx_count_distinct": "count(DISTINCT a)",
    "any_value": "min(a)",
    "first": "(array_agg(a ORDER BY b))[1]",
    "max_by": "(array_agg(a ORDER BY b DESC))[1]",
    "min_by": "(array_agg(a ORDER BY b))[1]",
    "getdate": "a column with the time of the change: a view does not follow the clock",
    "sysdate": "a column with the time of the change: a view does not follow the clock",
    "curdate": "a column with the time of the change: a view does not follow the clock",
    "unix_millis": "extract(epoch FROM a) * 1000",
}
_SYNTAX: Final = (
    (r"`", 'write names without backticks, or "name" with capitals or spaces'),
    (r"\[\w+\]\s*\.|\.\s*\[\w+\]|\bSELECT\s+\[", 'write "name" instead of [name]'),
    (r"\blateral\s+view\b", "write CROSS JOIN LATERAL unnest(a) AS e(value) instead of LATERAL VIEW explode(a)"),
    (r"\blimit\s+\d+\s*,\s*\d+", "write LIMIT b OFFSET a instead of LIMIT a, b, in a subquery with ORDER BY"),
    (r"\bselect\s+top\b", "write LIMIT in a subquery with ORDER BY instead of TOP"),
    (r"\(\+\)", "write LEFT JOIN ... ON instead of (+)"),
    (r"\bqualify\b", "write a subquery with row_number() and WHERE number = 1 around it instead of QUALIFY"),
    (r"\brownum\b", "write LIMIT in a subquery with ORDER BY instead of ROWNUM"),
    (r"\bconnect\s+by\b", "CONNECT BY, like WITH RECURSIVE, can't be traced to a key"),
    (r"\b(cross|outer)\s+apply\b", "write CROSS JOIN LATERAL or LEFT JOIN LATERAL ... ON true instead of APPLY"),
    (r"\brlike\b|\bregexp\s+'", "write a ~ 'pattern' instead of RLIKE and REGEXP"),
    (r"\bminus\s+select\b", "UNION, INTERSECT and EXCEPT can't be traced to a key: write NOT EXISTS"),
    (r"\bfrom\s+dual\b", "leave FROM dual out, and name a table"),
    (r"\bsysdate\b|\bgetdate\s*\(", "a view does not follow the clock: leave it to the reader of the view"),
    (r"<=>", "write IS NOT DISTINCT FROM instead of <=>"),
    (r"\bstraight_join\b", "write JOIN instead of STRAIGHT_JOIN"),
    (r"\b(left|right)?\s*(semi|anti)\s+join\b", "write WHERE EXISTS or NOT EXISTS instead of SEMI and ANTI JOIN"),
    (r"\bdistribute\s+by\b|\bcluster\s+by\b|\bsort\s+by\b", "leave DISTRIBUTE BY, CLUSTER BY and SORT BY out"),
    (r"\bunpivot\b|\bpivot\s*\(", "write an aggregate with FILTER for each column instead of PIVOT"),
    (r"\bfor\s+(json|xml)\b", "write jsonb_agg instead of FOR JSON"),
    (r"\bselect\s+\*\s+except\b", "name the columns instead of * EXCEPT"),
    (r"\bwith\s*\(\s*nolock\s*\)", "leave WITH (NOLOCK) out"),
)
_CALL: Final = re.compile(r"\b([a-z_]\w*)\s*\(", re.IGNORECASE)
_TEXT: Final = re.compile(r"'(?:[^']|'')*'|--[^\n]*|/\*.*?\*/", re.DOTALL)


def syntax_advice(query: str) -> str | None:
    """Says what to write instead of a construct of another database; None: the query has none that is known."""
    text = _TEXT.sub("''", query)
    return next((advice for pattern, advice in _SYNTAX if re.search(pattern, text, re.IGNORECASE)), None)


def advice(query: str) -> str | None:
    """Says what to write instead of a construct or a function of another database; None: nothing in the query is known
    to be that. PostgreSQL has functions of some of these names, too, so ask only about a query that was refused."""
    if message := syntax_advice(query):
        return message
    for name in _CALL.findall(_TEXT.sub("''", query)):
        if instead := _INSTEAD.get(name.lower()):
            return f"write {instead} instead of {name}"
    return None
