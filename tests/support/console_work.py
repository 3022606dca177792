"""What the console's pages of one table and of the process ask for, without a pipeline: recorded answers that a test
changes, and the operations that were asked for."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from cdc.model.events import pack_version
from watershed.http.change_streams import LIVE

ORDER = {"id": "7", "customer_id": "48", "status": "open", "total": "129.90", "note": "ring twice"}
COLUMNS = (
    ("id", "bigint", False, None),
    ("customer_id", "bigint", False, None),
    ("status", "text", False, None),
    ("total", "numeric(10,2)", False, None),
    ("note", "text", True, "asterisks"),
)
TYPES = {"search": "search", "cache": "cache", "warehouse": "warehouse", "sql": "sql"}
PLACES = {
    "search": {"alias": "shop.public.orders", "index": "shop.public.orders-1"},
    "cache": {"key": "shop:public.orders:KEY"},
    "warehouse": {"table": "lake.shop.orders"},
    "sql": {"table": "public.orders"},
}


def record(seq: int, row: dict[str, Any] | None, op: str = "update", **fields: Any) -> dict[str, Any]:
    """A record of the topic, as `cdc tail --json` prints it."""
    found = {
        "partition": 0,
        "offset": seq,
        "key": {"id": 7},
        "op": op,
        "version": pack_version(1, seq),
        "epoch": 1,
        "seq": seq,
        "commit_lsn": f"3/{0x51C000 + seq * 16:X}",
        "commit_us": int(time.time() * 1e6),
        "row": row,
        "before": None,
    }
    return found | fields


@dataclass
class ShownWork:
    """One order, and what operators did. The source, the topic and each store change on their own."""

    source: dict[str, str] | None = field(default_factory=lambda: dict(ORDER))
    records: list[dict[str, Any]] = field(default_factory=lambda: [record(1204, dict(ORDER), "insert")])
    stores: dict[str, dict[str, Any]] = field(default_factory=dict)
    asked: list[tuple[str, Any]] = field(default_factory=list)  # path and body of each operation
    audit: list[dict[str, Any]] = field(default_factory=list)
    refusal: str = ""  # of the next operations
    states: list[dict[str, Any]] = field(default_factory=list)  # of an operation, one for each question
    is_open: bool = True

    def __post_init__(self) -> None:
        for sink in TYPES:
            self.arrive(sink)

    def change(self, **columns: str) -> None:
        """In the source."""
        self.source = {**(self.source or {}), **columns}

    def publish(self) -> None:
        last = self.records[-1]
        self.records.append(record(last["seq"] + 1, dict(self.source or {}), before=last["row"]))

    def arrive(self, sink: str, verdict: str = "equal", **fields: Any) -> None:
        """The newest record, in this store."""
        newest = self.records[-1]
        self.stores[sink] = {
            "sink": sink,
            "verdict": verdict,
            "why": "",
            "next": "",
            "generation": 1,
            "version": newest["version"],
            "applied_lsn": newest["commit_lsn"],
            "row": None if newest["row"] is None else dict(newest["row"]),
            "names": {name: name for name in ORDER},
            "differences": [],
        } | fields

    def routes(self) -> list[Route]:
        return [
            Route("/v1/tables/{table}", self._table),
            Route("/v1/tables/{table}/row", self._row),
            Route("/v1/tables/{table}/changes", self._changes),
            Route("/v1/config", self._config),
            Route("/v1/log", self._log),
            Route("/v1/audit", self._audit),
            Route("/v1/operations/{id}", self._operation),
            Route("/v1/{path:path}", self._post, methods=["POST"]),
        ]

    async def _table(self, request: Request) -> Response:
        columns = [{"name": name, "type": kind, "nullable": null, "mask": mask} for name, kind, null, mask in COLUMNS]
        names = [name for name, *_ in COLUMNS]
        stores = [
            {
                "sink": sink,
                "type": TYPES[sink],
                "is_held": True,
                "generation": 1,
                "building": [2] if sink == "search" else [],
                "names": places,
                "columns": names[:4] if sink == "cache" else names,
                "where": "status <> 'draft'" if sink == "search" else None,
            }
            for sink, places in PLACES.items()
        ]
        described = {"table": request.path_params["table"], "status": "captured", "message": "", "next": ""}
        described |= {"topic": f"shop.{described['table']}", "partitions": 3, "key": ["id"], "schema_version": 2}
        versions = [{"version": 1, "columns": names[:4]}, {"version": 2, "columns": names}]
        return JSONResponse(described | {"columns": columns, "stores": stores, "schema_versions": versions})

    async def _row(self, request: Request) -> Response:
        asked = request.query_params
        if asked["key"] == "none":
            failure = {"error": "'none' is no key of public.orders: a value is none of its column's type"}
            return JSONResponse(failure | {"next": "the key is id: write its value"}, 400)
        count = int(asked.get("records", "0"))
        found = {"table": request.path_params["table"], "key": {"id": asked["key"]}, "source": self.source}
        records = [one | {"is_swept": False} for one in self.records[-count:]] if count else []
        topic = {"name": "shop.public.orders", "records": records}
        return JSONResponse(found | {"topic": topic, "stores": list(self.stores.values()), "not_held": ["audit"]})

    async def _changes(self, request: Request) -> Response:
        asked = request.query_params
        return StreamingResponse(self._events(int(asked["last"]), asked.get("key")), media_type="text/event-stream")

    async def _events(self, last: int, key: str | None) -> AsyncIterator[str]:
        place = max(0, len(self.records) - last)
        yield ": the last changes\n\n"
        is_begun = False
        while self.is_open:
            for one in self.records[place:]:
                if key is None or str(one["key"]["id"]) == key:
                    yield f"data: {json.dumps(one)}\n\n"
            place = len(self.records)
            if not is_begun:
                yield LIVE
                is_begun = True
            await asyncio.sleep(0.02)

    async def _config(self, _: Request) -> Response:
        options: dict[str, dict[str, Any]] = {
            "source.dsn": {"value": "postgresql://cdc:***@db.example.org/shop", "from": "watershed.yml"},
            "source.slot": {"value": "watershed", "from": "default"},
            "topics.prefix": {"value": "shop", "from": "watershed.yml"},
            "sinks.search.url": {"value": "https://search.example.org:9200", "from": "CDC__SINKS__SEARCH__URL"},
        }
        return JSONResponse({"file": "watershed.yml", "options": options})

    async def _log(self, _: Request) -> Response:
        lines = [
            "2026-11-27T19:00:01.250000Z [info     ] listening                      http=http://localhost:8480",
            "2026-11-27T19:00:07.500000Z [warning  ] a sink waits for its store     sink=search",
        ]
        return JSONResponse({"lines": lines})

    async def _audit(self, _: Request) -> Response:
        return JSONResponse({"operations": self.audit})

    async def _operation(self, request: Request) -> Response:
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        run = {
            "action": "verify",
            "who": "oncall",
            "seconds": 2.5,
            "progress": [],
            "result": None,
            "error": "",
            "next": "",
        }
        return JSONResponse({"id": request.path_params["id"]} | run | state)

    async def _post(self, request: Request) -> Response:
        path, body = request.path_params["path"], json.loads(await request.body())
        self.asked.append((path, body))
        if self.refusal:
            return JSONResponse({"error": self.refusal, "next": "`cdc table list` shows the tables"}, 409)
        if self.states:
            return JSONResponse({"id": "op-1"}, 202)
        return JSONResponse({"answer": "accepted", "tables": body.get("tables", [])})
