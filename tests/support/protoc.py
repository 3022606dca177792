"""Protobuf's own compiler and library: they judge the schemas and the bytes that capture writes."""

import tempfile
from functools import cache
from pathlib import Path
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc

# Which published schemas import, and neither the compiler nor the library brings.
_PUBLISHED: Final = {
    "confluent/type/decimal.proto": (
        'syntax = "proto3"; package confluent.type;'
        "message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }"
    ),
    "google/type/date.proto": (
        'syntax = "proto3"; package google.type; message Date { int32 year = 1; int32 month = 2; int32 day = 3; }'
    ),
    "google/type/timeofday.proto": (
        'syntax = "proto3"; package google.type;'
        "message TimeOfDay { int32 hours = 1; int32 minutes = 2; int32 seconds = 3; int32 nanos = 4; }"
    ),
}


@cache
def descriptors(schema: str) -> descriptor_pb2.FileDescriptorSet:
    """Returns what the compiler makes of a schema and its imports. Raises AssertionError with its complaint."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in {**_PUBLISHED, "schema.proto": schema}.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        out = Path(folder, "out")
        include = Path(protoc.__file__).parent / "_proto"
        options = [f"-I{folder}", f"-I{include}", "--include_imports", f"--descriptor_set_out={out}"]
        failed = protoc.main(["protoc", *options, str(Path(folder, "schema.proto"))])
        assert not failed, f"the compiler refuses the schema (see above):\n{schema}"
        return descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())


def message_class(schema: str) -> Any:
    """Returns the class of a schema's first message."""
    files, pool = descriptors(schema), descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    main = files.file[-1]
    name = f"{main.package}.{main.message_type[0].name}"
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
