"""What encodings with a schema registry cost: CPU time of encoding, beside JSON's, and of reading, and bytes.
Run: python -m tests.bench.registry_encodings [seconds]

The rows are those of tests.bench.codec, in profile `readable`. All paths alternate on the same messages.
"""

import sys
import time
import zlib
from collections.abc import Callable

from cdc.config.format_options import Encoding, FormatOptions
from cdc.formats.encodings import Form, forms_of, reader_of
from cdc.formats.records import EnvelopeContext, TableEncoder
from cdc.formats.wire_format import head
from sinks.records import ordinary_change
from tests.bench.codec import COLUMNS, FRAME, SHAPES, frames
from tests.support import wire

ENCODINGS: tuple[Encoding, ...] = ("json", "json_schema", "avro", "protobuf")


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    schema, relation = wire.schema_and_relation(COLUMNS, ["id"])
    messages = frames(SHAPES["insert"][1])
    encoder = TableEncoder(schema, relation, EnvelopeContext("shop", "shop", 1, "0.1.0"))
    encoder.start_transaction(24_026_100, 1_767_323_079_990_123, 560, 24_025_000)

    def in_json() -> list[tuple[bytes, bytes]]:
        made = [encoder.encode(message, FRAME, 24_026_000, i, i, 17)[0] for i, message in enumerate(messages)]
        return [(key, value) for key, value, _ in made if isinstance(value, bytes)]

    def encoded(forms: tuple[Form | None, Form]) -> list[tuple[bytes, bytes]]:
        key_form, value_form = forms
        assert key_form is not None
        first, second = head(1), head(2)
        return [(first + key_form.encode(key), second + value_form.encode(value)) for key, value in in_json()]

    forms = {name: forms_of(schema, FormatOptions(encoding=name), "shop") for name in ENCODINGS[1:]}
    writers: dict[Encoding, Callable[[], list[tuple[bytes, bytes]]]] = {"json": in_json}
    writers |= {name: lambda made=made: encoded(made) for name, made in forms.items()}  # type: ignore[misc]
    records = {name: write() for name, write in writers.items()}

    def read(name: Encoding) -> None:
        if name == "json":
            for key, value in records[name]:
                ordinary_change(schema, key, value)
            return
        key_of, value_of = (reader_of(form.schema_type, form.schema) for form in forms[name] if form is not None)
        for key, value in records[name]:
            ordinary_change(schema, key_of(key), value_of(value))

    best_write = dict.fromkeys(ENCODINGS, float("inf"))
    best_read = dict(best_write)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for name in ENCODINGS:
            began = time.process_time()
            writers[name]()
            written = time.process_time()
            read(name)
            best_write[name] = min(best_write[name], written - began)
            best_read[name] = min(best_read[name], time.process_time() - written)
    print(f"{'encoding':14}{'write µs':>10}{'ratio':>8}{'read µs':>10}{'ratio':>8}{'bytes':>8}{'deflated':>10}")
    for name in ENCODINGS:
        write_us, read_us = (best[name] / len(messages) * 1e6 for best in (best_write, best_read))
        batch = b"".join(key + value for key, value in records[name])
        print(
            f"{name:14}{write_us:>10.1f}{best_write[name] / best_write['json']:>8.2f}{read_us:>10.1f}"
            f"{best_read[name] / best_read['json']:>8.2f}{len(batch) / len(messages):>8.0f}"
            f"{len(zlib.compress(batch)) / len(messages):>10.0f}"
        )


if __name__ == "__main__":
    main()
