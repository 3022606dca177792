"""Queries as users write them: each is kept while its tables change, or refused with the reason."""

import pytest

from tests.support.user_queries import FOLDER, run_history

pytestmark = [pytest.mark.whole, pytest.mark.long]

STEPS = 40


@pytest.mark.parametrize("schema", sorted(path.stem for path in FOLDER.glob("*.sql")))
def test_a_query_is_kept_or_refused_with_the_reason(schema: str, fresh_database: str) -> None:
    problems = list(run_history(fresh_database, schema, STEPS))
    assert not problems, "\n".join(problems)
