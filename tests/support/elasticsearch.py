"""Elasticsearch's REST API in front of an OpenSearch node: not Elasticsearch, but a contract for the sink's requests.

Requests are held against Elasticsearch's published specification (elasticsearch_rest.json: paths, methods and query
parameters of versions 8 and 9): what the specification lacks is refused as Elasticsearch refuses it, and noted in
`violations`. What it has and OpenSearch has under another name (points in time, types of fields) is translated, there
and back. Texts of errors and the first answer are Elasticsearch's, as its documentation prints them.
"""

import http.client
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from sinks.json_numbers import json_text, read_json

SPECIFICATION: Final = json.loads(Path(__file__).with_name("elasticsearch_rest.json").read_text(encoding="utf-8"))
# Elasticsearch reads it from every request that names indexes (IndicesOptions); the specification leaves it out there.
ALSO_READ: Final = {"indices.stats": {"ignore_unavailable"}}
FOREIGN_TYPES: Final = {"flat_object", "knn_vector"}
FOREIGN_SETTINGS: Final = {"knn"}
VECTORS_LEFT_OUT: Final = (9, 2)
_UNINDEXED: Final[dict[str, Any]] = {"type": "float", "index": False}
_JSON_TYPES: Final = re.compile(r"application/(json|x-ndjson|vnd\.elasticsearch\+(json|x-ndjson))")


class Endpoint(NamedTuple):
    api: str
    methods: frozenset[str]
    paths: tuple[re.Pattern[str], ...]
    parameters: frozenset[str]


@dataclass
class Face:
    """The running front."""

    url: str
    version: str
    violations: list[str] = field(default_factory=list)
    used: set[str] = field(default_factory=set)  # names of the specification's APIs that were called
    fields: dict[str, dict[str, Any]] = field(default_factory=dict)  # field: as it was mapped, for all indexes
    hides_vectors: set[str] = field(default_factory=set)  # indexes


class Refusal(Exception):  # noqa: N818
    def __init__(self, status: int, error_type: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        cause = {"type": error_type, "reason": reason}
        self.body = {"error": {"root_cause": [cause], **cause}, "status": status}


def endpoints(major: int) -> list[Endpoint]:
    """Returns the specification of one major version."""
    found = []
    for entry in SPECIFICATION["endpoints"]:
        parameters = {*entry["parameters"], *entry.get(f"only_{major}", ()), *SPECIFICATION["common"]}
        patterns = tuple(re.compile(re.sub(r"\{[a-z_]+\}", "[^/]+", path)) for path in entry["paths"])
        parameters |= ALSO_READ.get(entry["api"], set())
        found.append(Endpoint(entry["api"], frozenset(entry["methods"]), patterns, frozenset(parameters)))
    return found


def info(version: str) -> dict[str, Any]:
    """Returns the answer to GET /."""
    return {
        "name": "instance-0000000000",
        "cluster_name": "face",
        "cluster_uuid": "PV4D9iYSQbOiZHU1bLcNAg",
        "version": {
            "number": version,
            "build_flavor": "default",
            "build_type": "docker",
            "build_hash": "253e8544a65ad44581194068936f2a5d57c2c051",
            "build_date": "2026-07-02T22:04:47.310170297Z",
            "build_snapshot": False,
            "lucene_version": "10.3.2",
            "minimum_wire_compatibility_version": "8.19.0",
            "minimum_index_compatibility_version": "8.0.0",
        },
        "tagline": "You Know, for Search",
    }


@contextmanager
def elasticsearch_face(opensearch: str, version: str = "9.5.1") -> Iterator[Face]:
    """Serves until the end of the context. `opensearch`: the address of the node behind."""
    behind = urlsplit(opensearch)
    known = endpoints(int(version.partition(".")[0]))
    has_vectors = tuple(int(part) for part in version.split(".")[:2]) >= VECTORS_LEFT_OUT

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            try:
                status, content = self._handled(body)
            except Refusal as refusal:
                face.violations.append(f"{self.command} {self.path}: {refusal}")
                status, content = refusal.status, refusal.body
            encoded = json_text(content).encode()
            self.send_response(status)
            self.send_header("X-elastic-product", "Elasticsearch")
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(encoded)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(encoded)

        def _handled(self, body: bytes) -> tuple[int, Any]:
            parts = urlsplit(self.path)
            endpoint = self._endpoint(parts.path, dict(parse_qsl(parts.query, keep_blank_values=True)))
            face.used.add(endpoint.api)
            if body and not _JSON_TYPES.match(self.headers.get("Content-Type", "")):
                raise Refusal(406, "media_type_header_exception", "Content-Type header is not supported")
            match endpoint.api:
                case "info":
                    return 200, info(face.version)
                case "open_point_in_time":
                    path = parts.path.replace("/_pit", "/_search/point_in_time")
                    status, answer = self._asked(path, parts.query, b"")
                    return status, {"id": answer["pit_id"], "_shards": answer["_shards"]} if status == 200 else answer
                case "close_point_in_time":
                    closed = json.dumps({"pit_id": [json.loads(body)["id"]]}).encode()
                    status, answer = self._asked("/_search/point_in_time", "", closed)
                    return status, {"succeeded": True, "num_freed": 1} if status == 200 else answer
                case "indices.create":
                    body = self._translated(json.loads(body), parts.path.strip("/"), has_vectors)
                case "indices.put_mapping":
                    body = json.dumps(self._mapping(json.loads(body))).encode()
                case "search":
                    body = self._search(json.loads(body))
            status, answer = self._asked(parts.path, parts.query, body)
            return status, self._back(endpoint.api, answer)

        def _endpoint(self, path: str, parameters: dict[str, str]) -> Endpoint:
            fits = [found for found in known if any(pattern.fullmatch(path) for pattern in found.paths)]
            # A path like /_pit would also fit /{index}.
            fits = [found for found in fits if not path.startswith("/_") or found.api != "indices.create"]
            endpoint = next((found for found in fits if self.command in found.methods), None)
            if endpoint is None:
                allowed = sorted({method for found in fits for method in found.methods})
                reason = f"Incorrect HTTP method for uri [{path}] and method [{self.command}], allowed: {allowed}"
                raise Refusal(405 if fits else 400, "illegal_argument_exception", reason)
            for name in parameters:
                if name not in endpoint.parameters:
                    reason = f"request [{path}] contains unrecognized parameter: [{name}]"
                    raise Refusal(400, "illegal_argument_exception", reason)
            return endpoint

        def _translated(self, body: dict[str, Any], index: str, has_vectors: bool) -> bytes:
            settings = body.get("settings", {})
            for name in FOREIGN_SETTINGS & settings.keys():
                raise Refusal(400, "illegal_argument_exception", f"unknown setting [index.{name}]")
            hides = settings.pop("index.mapping.exclude_source_vectors", None)
            if hides is not None and not has_vectors:
                reason = "unknown setting [index.mapping.exclude_source_vectors]"
                raise Refusal(400, "illegal_argument_exception", reason)
            if has_vectors and hides is not False:
                face.hides_vectors.add(index)
            return json.dumps(body | {"mappings": self._mapping(body.get("mappings", {}))}).encode()

        def _mapping(self, mappings: dict[str, Any]) -> dict[str, Any]:
            made = {}
            for name, given in mappings.get("properties", {}).items():
                kind = given.get("type")
                if kind in FOREIGN_TYPES:
                    reason = f"No handler for type [{kind}] declared on field [{name}]"
                    raise Refusal(400, "mapper_parsing_exception", reason)
                if kind == "flattened":
                    made[name] = {"type": "flat_object"}
                elif kind == "dense_vector":
                    made[name] = _UNINDEXED
                else:
                    made[name] = given
                if made[name] is not given:
                    face.fields[name] = given
            return mappings | ({"properties": made} if made else {})

        def _search(self, body: dict[str, Any]) -> bytes:
            sort = [{"_seq_no" if name == "_shard_doc" else name: order for name, order in entry.items()}
                    for entry in body.get("sort", ())]  # fmt: skip
            return json.dumps(body | ({"sort": sort} if sort else {})).encode()

        def _back(self, api: str, answer: Any) -> Any:
            if api in ("indices.get", "indices.get_mapping") and isinstance(answer, dict):
                for described in answer.values():
                    properties = described.get("mappings", {}).get("properties", {}) if "mappings" in described else {}
                    properties.update({name: face.fields[name] for name in properties.keys() & face.fields.keys()})
            if api == "bulk":
                for item in answer.get("items", ()):
                    error = item["index"].get("error", {})
                    if error.get("type") == "mapper_parsing_exception":
                        error |= {"type": "document_parsing_exception", "reason": f"[1:20] {error['reason']}"}
            if api in ("search", "mget", "get"):
                for hit in answer.get("hits", {}).get("hits", ()) if api == "search" else answer.get("docs", [answer]):
                    if hit.get("_index") in face.hides_vectors and isinstance(hit.get("_source"), dict):
                        for name, given in face.fields.items():
                            if given["type"] == "dense_vector":
                                hit["_source"].pop(name, None)
            return answer

        def _asked(self, path: str, query: str, body: bytes) -> tuple[int, Any]:
            connection = http.client.HTTPConnection(behind.hostname or "", behind.port, timeout=60)
            try:
                kind = {"Content-Type": "application/json"} if body else {}
                connection.request(self.command, f"{path}?{query}" if query else path, body or None, kind)
                answer = connection.getresponse()
                return answer.status, read_json((answer.read() or b"{}").decode())
            finally:
                connection.close()

        def __getattr__(self, name: str) -> Callable[[], None]:
            if name.startswith("do_"):
                return self._answer
            raise AttributeError(name)

        def log_message(self, format: str, *arguments: object) -> None:
            """Nothing to stderr."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        face = Face(f"http://127.0.0.1:{server.server_address[1]}", version)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield face
        finally:
            server.shutdown()
            thread.join()
