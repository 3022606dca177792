"""Which archives the Python workers leave out of their import path."""

import sys

import pytest

from spark_jobs.daemon import leave_out_archives

OURS = ["/env/lib/pyspark.zip", "/env/lib/py4j-0.10.9.9-src.zip", "/env/jars/spark-core_2.13-4.1.3.jar"]
OTHERS = ["/env/site-packages", "/job/users.zip", "/job/pyspark.zip.d", "/python311.zip"]


def test_sparks_own_archives_are_left_out_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [OTHERS[0], *OURS, *OTHERS[1:], OURS[0]])
    monkeypatch.setattr(sys, "path_importer_cache", dict.fromkeys([*OURS, *OTHERS]))
    leave_out_archives()
    assert sys.path == OTHERS
    assert list(sys.path_importer_cache) == OTHERS
