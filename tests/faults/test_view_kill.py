"""Views over the whole pipeline under kill -9: the short form of view_kill_campaign."""

from pathlib import Path

import pytest

from tests.conftest import KafkaBroker, PostgresServer
from tests.faults.view_kill_campaign import all_queries, view_episode

pytestmark = pytest.mark.whole

FAULTS = ("kill_view", "freeze_view", "kill_capture", "replay", "change_view", "drop_base")


@pytest.mark.long  # tests/integration/test_views.py and test_view_maintenance.py end jobs at chosen moments
def test_views_end_equal_to_their_queries_over_the_source_over_kills(
    postgres: PostgresServer, kafka: KafkaBroker, tmp_path: Path
) -> None:
    reported = view_episode(postgres, kafka, 7, tmp_path, FAULTS)
    assert reported["failures"] == []
    assert reported["rows"].keys() == all_queries().keys()
    assert reported["rows"]["documents"] > 0 < reported["rows"]["paid_after_failures"]
