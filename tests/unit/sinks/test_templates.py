"""Templates name each row once, or are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.model.events import Column, TableId, TableSchema
from sinks.errors import RefusedError
from sinks.templates import Template, check_apart, overlap, parts_beginning, value_text

TABLE = TableId("public", "users")
OIDS = {"id": 23, "token": 2950, "email": 25, "name": 25, "rate": 1700}
SCHEMA = TableSchema(
    TABLE, 1, 16_400, tuple(Column(name, oid, -1, "", False) for name, oid in OIDS.items()), ("id", "name"), "t"
)


def parse(text: str) -> Template:
    return Template.parse(text, "cache")


@pytest.mark.parametrize(
    ("text", "row", "expected"),
    [
        ("user:{id}", {"id": 7}, "user:7"),
        ("{email}", {"email": "a:b%"}, "a:b%"),
        ("u:{name}:{id}!", {"id": -7, "name": "a:b%"}, "u:a%3Ab%25:-7!"),
        ("{id}-{id}", {"id": -7}, "%2D7--7"),
        ("{name}é{id}", {"id": 1, "name": "é"}, "%C3%A9é1"),
        ("{flag}/{list}", {"flag": True, "list": [1, None, "x"]}, 'true/[1,null,"x"]'),
        ("u:{name}:{id}", {"id": None, "name": "a"}, None),
        ("u:{{tag}}:{id}", {"id": 7}, "u:{tag}:7"),
        ("{{{name}}}{{{id}}}", {"id": 7, "name": "a}b"}, "{a%7Db}{7}"),
    ],
)
def test_a_row_fills_a_template(text: str, row: dict[str, object], expected: str | None) -> None:
    assert parse(text).render(row) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("user", "names no column"),
        ("user:{}", "needs a column's name"),
        ("user:{id", "needs a column's name"),
        ("user:id}", "needs a column's name"),
        ("user:{{id}", "needs a column's name"),
        ("user:{id}}", "needs a column's name"),
        ("user:{{id}}", "names no column"),
        ("{id}{name}", "must be separated"),
        ("{id}%{name}", "must be separated"),
        ("{id}A{name}", "must be separated"),
        ("{id}1{name}", "must be separated"),
    ],
)
def test_what_is_no_template_is_refused(text: str, reason: str) -> None:
    with pytest.raises(RefusedError, match=reason) as caught:
        parse(text)
    assert text in caught.value.message and caught.value.hint


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{id}", "not unique: it lacks name"),
        ("{id}:{email}", "names column email, which is not part of the key"),
        ("{id}:{nmae}", "names column nmae, which public.users does not have"),
    ],
)
def test_a_template_that_is_not_unique_is_refused(text: str, reason: str) -> None:
    with pytest.raises(RefusedError, match=reason):
        parse(text).check_unique(SCHEMA, "cache")


def test_a_template_of_the_whole_key_is_unique() -> None:
    parse("{name}:{id}").check_unique(SCHEMA, "cache")


Texts = st.text(alphabet="a:%3A|é", max_size=5)


@given(st.tuples(Texts, Texts, Texts), st.tuples(Texts, Texts, Texts))
def test_different_rows_never_have_the_same_text(left: tuple[str, ...], right: tuple[str, ...]) -> None:
    template = parse("x{a}:{b}|:{c}:")
    assert (template.fill(left) == template.fill(right)) == (left == right)


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ("user:{id}", "user:by_email:{email}", False),
        ("user:{email}", "user:by_email:{email}", True),
        ("user:{id}", "user:{rate}", True),
        ("user:{token}", "user:{id}", True),
        ("user:{token}", "user:x{id}", False),
        ("a{id}", "b{id}", False),
        ("{email}", "anything:{id}", True),
        ("{id}:a", "{id}:b", False),
        ("{id}:{name}", "{email}", True),
    ],
)
def test_templates_that_can_make_one_text_are_found(left: str, right: str, expected: bool) -> None:
    parts = [parse(text).parts(SCHEMA) for text in (left, right)]
    assert overlap(*parts) is overlap(*reversed(parts)) is expected


def test_keys_that_begin_with_a_text_are_found() -> None:
    assert overlap(parse("{email}").parts(SCHEMA), parts_beginning("shop:"))
    assert overlap(parse("shop:{id}").parts(SCHEMA), parts_beginning("shop:"))
    assert not overlap(parse("{id}").parts(SCHEMA), parts_beginning("shop:"))


def test_templates_of_two_tables_are_named() -> None:
    own = {text: parse(text).parts(SCHEMA) for text in ("user:{id}", "mail:{email}")}
    other = {(TableId("public", "mails"), "mail:{id}"): parse("mail:{id}").parts(SCHEMA)}
    with pytest.raises(RefusedError, match=r"'mail:\{email\}' of public.users and 'mail:\{id\}' of public.mails"):
        check_apart(TABLE, own, other, "cache")
    check_apart(TABLE, own, {}, "cache")


def test_values_stand_in_keys_as_readers_expect() -> None:
    assert [value_text(value) for value in ("a b", 7, 1.5, False)] == ["a b", "7", "1.5", "false"]
