"""Records about the jobs of sinks have keys of their own, and come back as they were."""

from cdc.model.job_records import QueryRecord, RebuildRecord, SinkErrorRecord


def test_each_kind_has_its_key() -> None:
    error = SinkErrorRecord(sink="cache", message="m", next="n", is_final=False, at_us=1)
    asked = RebuildRecord(sink="cache", request="r", action="rebuild", status="asked", asked_us=1)
    assert (error.record_key, asked.record_key) == ("sink-error/cache", "rebuild/cache")
    query = QueryRecord(sink="cache", generation=2, batch=0)
    assert query.record_key == "query/cache/2"
    assert QueryRecord.decode(query.encode(), "shop.progress") == query
    assert SinkErrorRecord.decode(error.encode(), "shop.progress") == error
    assert RebuildRecord.decode(asked.encode(), "shop.progress") == asked


def test_a_rebuild_is_open_until_its_job_has_decided() -> None:
    asked = RebuildRecord(sink="cache", request="r", action="rebuild", status="asked", asked_us=1)
    is_open = {
        status: asked.model_copy(update={"status": status}).is_open
        for status in ("asked", "running", "done", "failed", "cancelled")
    }
    assert is_open == {"asked": True, "running": True, "done": False, "failed": False, "cancelled": False}
