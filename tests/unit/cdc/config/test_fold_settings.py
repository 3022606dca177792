"""Section `fold` of a view: names of functions, columns and types."""

from typing import Any

import pytest
from pydantic import ValidationError

from cdc.config.fold_settings import FoldConfig
from cdc.config.views import ViewConfig

FOLD: dict[str, Any] = {"function": "shop.accounts:apply", "order": ["no"], "columns": {"balance": "numeric(12,2)"}}


@pytest.mark.parametrize(
    "type_name",
    ["text", "numeric(12, 2)", "timestamp(3) with time zone", "character varying(5)[]", "int[][]", 'shop."Mood"'],
)
def test_columns_have_types(type_name: str) -> None:
    assert FoldConfig.model_validate(FOLD | {"columns": {"größe": type_name}}).columns == {"größe": type_name}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"function": "apply"}, "does not name a function: write module:function"),
        ({"function": "shop/accounts.py:apply"}, "does not name a function"),
        ({"order": [False]}, 'write a column of this name as "no"'),
        ({"columns": {"a": "text", True: "text"}}, 'write a column of this name as "no"'),
        ({"order": []}, "at least 1 item"),
        ({"order": ["no", "no"]}, "listed twice in order"),
        ({"columns": {}}, "at least 1 item"),
        ({"columns": {"a b": "text"}}, "can't be a column's name"),
        ({"columns": {"a": "text); DROP TABLE x"}}, "not the name of a PostgreSQL type"),
        ({"columns": {"a": ""}}, "not the name of a PostgreSQL type"),
        ({"colums": {}}, "Extra inputs"),
    ],
)
def test_a_fold_that_says_nothing_usable_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        FoldConfig.model_validate(FOLD | changes)


def test_a_column_is_not_in_the_key_too() -> None:
    view = {"base": "copy", "sql": "SELECT 1", "key": ["balance"], "target": {"type": "topic"}, "fold": FOLD}
    with pytest.raises(ValidationError, match="balance is a column of the key"):
        ViewConfig.model_validate(view)
    assert ViewConfig.model_validate(view | {"key": ["id"]}).fold == FoldConfig.model_validate(FOLD)
