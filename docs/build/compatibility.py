"""The combinations of brokers and logins, encodings and stores, search servers and credentials, with what tests show.

A test says what it shows by a marker, on the function or on one of its cases (`pytest.param(…, marks=…)`):

    @pytest.mark.combination("kafka", "Apache Kafka", "PLAIN")

- `clients="…"`: the clients that the test used, if not all.
- `instead="…"`: what stood in for the server, or what was compared, if the test does not run on one.
- `refused="…"`: the message with which the combination is refused. The test takes it from fixture
  `expected_refusal`, so that it is written once.

The markers are read from the text of the tests, because importing them would need all that the tests need. A
combination without a marker is shown as not tested.
"""

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
MARKER: Final = "pytest.mark.combination"
LONG: Final = "pytest.mark.long"
REFUSAL: Final = "expected_refusal"  # the fixture with the message of the marker
NOT_TESTED: Final = "not tested"


class Subject(NamedTuple):
    """The combinations of which a table speaks."""

    head: tuple[str, ...]
    combinations: tuple[tuple[str, ...], ...]


class Shown(NamedTuple):
    """What one marker says."""

    subject: str
    names: tuple[str, ...]
    result: str
    file: str
    test: str
    is_long: bool


ENCODINGS: Final = ("json", "avro", "json_schema", "protobuf")
SUBJECTS: Final[Mapping[str, Subject]] = {
    "kafka": Subject(
        ("brokers", "login"),
        (
            *(
                ("Apache Kafka", login)
                for login in (
                    "none",
                    "PLAIN",
                    "a wrong password",
                    "SCRAM-SHA-256",
                    "SCRAM-SHA-512",
                    "client certificate",
                    "no certificate, where the brokers ask for one",
                    "OAUTHBEARER, client credentials",
                    "OAUTHBEARER, a wrong client secret",
                    "OAUTHBEARER, token plug-in",
                    "OAUTHBEARER, a token that the brokers refuse",
                    "OAUTHBEARER, a plug-in that is not installed",
                    "Kerberos (GSSAPI)",
                    "no right to create topics, and none is missing",
                    "no right to create topics, and one is missing",
                )
            ),
            *(("Amazon MSK", login) for login in ("IAM", "IAM, without a region", "SCRAM", "client certificate")),
            ("Amazon MSK Serverless", "IAM"),
            *(("Confluent Cloud", login) for login in ("API key (PLAIN)", "OAUTHBEARER")),
            *(("Aiven", login) for login in ("SCRAM", "client certificate")),
            *(("Redpanda", login) for login in ("SCRAM", "OAUTHBEARER")),
        ),
    ),
    "encodings": Subject(
        ("encoding", "profile", "written or read by"),
        (
            *(
                (encoding, "readable", reader)
                for encoding in ENCODINGS
                for reader in ("capture", "search", "cache", "SQL", "warehouse", 'format("watershed")')
            ),
            *((encoding, "debezium", "capture") for encoding in ENCODINGS),
            ("each of these", "debezium", "any store"),
            ("json, CloudEvents binary", "both", "capture"),
            ("json, CloudEvents binary", "readable", "any store"),
            ("json, CloudEvents structured", "both", "capture"),
            ("json, CloudEvents structured", "readable", "any store"),
        ),
    ),
    "search": Subject(
        ("server", "credential"),
        (
            *((f"OpenSearch {major}", "none") for major in (3, 2)),
            *((f"Elasticsearch {major}", "none") for major in (9, 8)),
            *(
                ("each of these", credential)
                for credential in (
                    "user and password",
                    "user in the address",
                    "API key",
                    "client certificate, own authority",
                    "an authority that is not known",
                    "a user that the server refuses",
                    "a user without a right",
                    "user without password",
                    "user and API key",
                )
            ),
            ("Amazon OpenSearch Service", "AWS (SigV4)"),
            ("Amazon OpenSearch Service", "AWS, without credentials"),
            ("Amazon OpenSearch Serverless", "AWS (SigV4)"),
            ("Elasticsearch Serverless", "any"),
            ("OpenSearch before 2.4", "any"),
            ("Elasticsearch 7", "any"),
            ("a data stream", "any"),
        ),
    ),
}


def head(subject: str) -> list[str]:
    """Returns the heads of a table's columns."""
    return [*SUBJECTS[subject].head, "result", "runs", "test"]


def rows(subject: str) -> Iterator[list[str]]:
    """Returns a row for each test of each combination, in the order of SUBJECTS. Raises ValueError for a marker that
    can't be used."""
    found: dict[tuple[str, ...], list[Shown]] = {}
    for shown in all_shown():
        if shown.subject == subject:
            found.setdefault(shown.names, []).append(shown)
    for names in SUBJECTS[subject].combinations:
        if names not in found:
            yield [*names, NOT_TESTED, "", ""]
        for shown in found.get(names, ()):
            runs = "long campaign" if shown.is_long else "every commit"
            yield [*names, shown.result, runs, f"[{shown.test}](../../{shown.file})"]


@cache
def all_shown() -> tuple[Shown, ...]:
    """Returns what all tests show. Raises ValueError as `shown_by` does."""
    found: list[Shown] = []
    for path in sorted(ROOT.glob("tests/**/test_*.py")):
        text = path.read_text(encoding="utf-8")
        if MARKER in text:
            found += shown_by(text, path.relative_to(ROOT).as_posix())
    return tuple(found)


def shown_by(text: str, file: str) -> list[Shown]:
    """Returns what the tests of a file show. Raises ValueError for a combination that SUBJECTS does not have, for
    options other than those above, for a refusal whose test does not take the message from the marker, and for a marker
    elsewhere than on a function of the module."""
    module = ast.parse(text)
    tests = [statement for statement in module.body if isinstance(statement, ast.FunctionDef)]
    marks = [ast.unparse(one.value) for one in module.body if isinstance(one, ast.Assign) and _is_pytestmark(one)]
    found = [
        _shown(call, test, file, is_long=any(LONG in mark for mark in (*marks, *map(ast.unparse, test.decorator_list))))
        for test in tests
        for decorator in test.decorator_list
        for call in _markers(decorator)
    ]
    if len(found) != len(_markers(module)):
        raise ValueError(f"{file}: mark functions of the module only: other markers are not read")
    return found


def _markers(tree: ast.AST) -> list[ast.Call]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == MARKER]


def _is_pytestmark(statement: ast.Assign) -> bool:
    return [ast.unparse(target) for target in statement.targets] == ["pytestmark"]


def _shown(call: ast.Call, test: ast.FunctionDef, file: str, *, is_long: bool) -> Shown:
    place = f"{file}::{test.name}"
    try:
        subject, *names = (ast.literal_eval(argument) for argument in call.args)
        options: dict[str, Any] = {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
        is_known = tuple(names) in SUBJECTS[subject].combinations
    except (ValueError, KeyError) as error:
        raise ValueError(f"{place}: {ast.unparse(call)} is not a subject and names, as texts") from error
    if not is_known:
        raise ValueError(f"{place}: add {names} to {subject!r} in docs/build/compatibility.py, or correct the marker")
    if "refused" in options and REFUSAL not in {argument.arg for argument in test.args.args}:
        raise ValueError(f"{place}: take the message from fixture {REFUSAL}, and compare it with the error")
    return Shown(subject, tuple(names), _result(place, **options), file, test.name, is_long)


def _result(place: str, **options: str) -> str:
    match options:
        case {"refused": message, **others} if not others:
            return f"refused: `{message}`"
        case {"instead": stand_in, **others} if not others:
            return f"not on a server: {stand_in}"
        case {"clients": clients, **others} if not others:
            return f"works: {clients}"
        case {} if not options:
            return "works"
    raise ValueError(f"{place}: a combination has one of refused, instead and clients, not {', '.join(options)}")
