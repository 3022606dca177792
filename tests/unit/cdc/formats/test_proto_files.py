"""Protobuf's schema files: registries may return them in a form of their own, and others are refused."""

import pytest

from cdc.formats.proto_files import parsed_file
from cdc.formats.proto_schemas import parsed

OURS = """syntax = "proto3";
package shop.public.t;
import "google/protobuf/timestamp.proto";

message Envelope {
  reserved 3, 7;
  reserved "old";
  optional .shop.public.t.Envelope.Value after = 1;
  .google.protobuf.Timestamp at = 2 [json_name = "at \\"x\\""];
  message Value {
    optional string a_b = 1 [json_name = "a_b"];  // io.debezium.data.Uuid
    repeated int32 b = 2;
  }
}
"""
# As a registry may write the same: in other places, with other spaces, quotes and escapes, and options of its own.
THEIRS = """// Proto schema formatted by Wire, do not edit.
/* Source: */
syntax = 'proto3';
package shop.public.t;
import "google/protobuf/timestamp.proto";
option java_package = "x.y"; option (own.thing) = { a: [1, 2] b: "}" };
message Envelope {
  message Value { optional string a_b = 1[deprecated = false, json_name="a_b"];
    repeated int32 b = 0x2 [packed = true, (own.meta) = { params: [{ key: "k", value: "]" }] }]; };
  reserved 3 to 3, 7; reserved "old";
  option deprecated = false;
  optional Value after = 1;
  google.protobuf.Timestamp at = 2 [json_name = "at " '\\042x\\x22'];
}
"""


def test_other_spellings_say_the_same() -> None:
    assert parsed(THEIRS) == parsed(OURS)
    [envelope] = parsed(OURS).messages
    assert [field.type for field in envelope.fields] == ["shop.public.t.Envelope.Value", "google.protobuf.Timestamp"]
    assert envelope.fields[1].original == 'at "x"'
    assert envelope.reserved_numbers == {3, 7}
    assert envelope.reserved_names == {"old"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it has no message"),
        ("{", "a Protobuf schema with {"),
        ('syntax = "proto2"; message A {}', "no Protobuf schema in proto3"),
        ("message A { enum B { C = 0; } }", "with enum, which Watershed does not write"),
        ("message A { oneof b { int32 c = 1; } }", "with oneof"),
        ("message A { map<string, string> b = 1; }", "with map"),
        ("message A { extensions 100 to 199; }", "with extensions"),
        ("extend A { int32 b = 1; }", "with extend"),
        ("service S { rpc R (A) returns (B); }", "with service"),
        ("message A { B b = 1; }", "type B is not known"),
        ("message A { int32 b = 0; }", "0 is no number of a field"),
        ("message A { int32 b = 1", "it ends too early"),
        ("message A { int32 b = 1; ", "it ends too early"),
        ("message A { int32 b 1; }", "1 where = is expected"),
        ("message A { int32 b = 1 c; }", "c follows field b"),
        ("message A { reserved 1 to max; }", "reserves the numbers from 1 on"),
        ("message A { reserved x; }", "invalid literal"),
        ("option a = 1", "it ends too early"),
        ("message A { int32 b = 1 [json_name = c]; }", "c where a text is expected"),
        ("message A {\n  int32 § = 1; }", "'§ = 1; }' in line 2"),
        ('message A { int32 b = 1 [json_name = "\\377"]; }', "utf-8"),
        ("message A {" * 20 + "}" * 20, "messages that are too deep"),
        ('{"type":"record"}', "a Protobuf schema with {"),
    ],
)
def test_what_is_not_ours_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parsed_file(text, {})
