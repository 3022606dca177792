"""Array literals."""

import json

import pytest

from cdc.model.errors import MalformedValueError
from cdc.pgoutput.arrays import ArrayEncoder

encode = ArrayEncoder(json.dumps, ",")


@pytest.mark.parametrize(
    ("literal", "expected"),
    [
        ("{}", []),
        ("{a}", ["a"]),
        ("{a,NULL,b}", ["a", None, "b"]),
        ('{"NULL","null",""}', ["NULL", "null", ""]),
        (r'{"say \"hi\"","back\\slash","\\\\"}', ['say "hi"', "back\\slash", "\\\\"]),
        ('{"a b","c,d","{}"," "}', ["a b", "c,d", "{}", " "]),
        ('{"line\nbreak","tab\t"}', ["line\nbreak", "tab\t"]),
        ("{{1,2},{3,NULL}}", [["1", "2"], ["3", None]]),
        ('{{{"x"}},{{y}}}', [[["x"]], [["y"]]]),
        ("{{{{{{deep}}}}}}", [[[[[["deep"]]]]]]),
        ("[-2:0]={1,2,3}", "[-2:0]={1,2,3}"),
        ('[2:2][0:1]={{a,"b\\"c"}}', '[2:2][0:1]={{a,"b\\"c"}}'),
        ("{NULLIF,XNULL}", ["NULLIF", "XNULL"]),
        ("{;:'}", [";:'"]),
    ],
)
def test_literals_become_json(literal: str, expected: object) -> None:
    assert json.loads(encode(literal)) == expected


def test_another_delimiter_leaves_commas_in_elements() -> None:
    boxes = ArrayEncoder(json.dumps, ";")
    assert json.loads(boxes('{(1,1),(0,0);"(;)";NULL}')) == ["(1,1),(0,0)", "(;)", None]


@pytest.mark.parametrize(
    "literal",
    [
        *("", "{", "}", "a", "{a", "a}", "{a,}", "{,a}", "{a,,b}", ",", '"a"', "{a}b", "{a}{b}", "{}{}", "{} "),
        *("{{}}", "{{a},{}}", "{{a},b}", "{a,{b}}", "{{a},{b,c}}", "{{a}{b}}", "{{a},}", "{{a}", "{{{a}}", "{{a}}}"),
        *('{"a}', '{"a""b"}', '{"a"b}', '{a"b"}', "{a b}", "{ a}", "{a\\b}", "{\\a}", '{"a\\'),
        *("{null}", "{Null,a}", "{{nULL}}", "{{{{{{{seven}}}}}}}"),
        *("[1:2]", "[1:2]=", "[1:2]{a,b}", "[a:b]={a}", "[1]={a}", "[1:2]={a}x", "[0:0]" * 7 + "={a}"),
    ],
)
def test_what_array_out_does_not_print_is_refused(literal: str) -> None:
    with pytest.raises(MalformedValueError):
        encode(literal)


def test_a_long_element_and_a_long_array_take_time_in_proportion() -> None:
    element = '\\"x' * 40_000
    assert json.loads(encode(f'{{"{element}"}}')) == ['"x' * 40_000]
    assert len(json.loads(encode("{" + ",".join(["ab"] * 40_000) + "}"))) == 40_000
    with pytest.raises(MalformedValueError):
        encode('{"' + element)
    with pytest.raises(MalformedValueError):
        encode("{" + "a," * 40_000)
