"""Which product answers, and whether a sink can use it."""

import pytest
from pydantic import SecretStr

from cdc.config.stores import SearchConfig
from sinks.errors import RefusedError
from sinks.search.check import search_findings
from sinks.search.product import Product
from sinks.search.sink import SearchSink
from tests.support.elasticsearch import info
from tests.unit.sinks.search.conftest import QUICK
from tests.unit.sinks.search.scripted import scripted_server

OPENSEARCH: dict[str, object] = {
    "version": {"distribution": "opensearch", "number": "3.8.0", "build_type": "tar"},
    "tagline": "The OpenSearch Project: https://opensearch.org/",
}


def numbered(number: str) -> dict[str, object]:
    return OPENSEARCH | {"version": {"distribution": "opensearch", "number": number}}


@pytest.mark.parametrize(
    ("answer", "product", "is_supported"),
    [
        (OPENSEARCH, "OpenSearch 3.8.0", True),
        (numbered("2.19.1"), "OpenSearch 2.19.1", True),
        (numbered("4.0.0"), "OpenSearch 4.0.0", False),
        (info("8.19.3"), "Elasticsearch 8.19.3", True),
        (info("9.5.1"), "Elasticsearch 9.5.1", True),
        (info("10.0.0-SNAPSHOT"), "Elasticsearch 10.0.0-SNAPSHOT", False),
        ({}, "OpenSearch of an unknown version", False),
    ],
)
def test_the_product_says_what_it_is(answer: dict[str, object], product: str, is_supported: bool) -> None:
    found = Product.of(answer)
    found.check()
    assert (str(found), found.is_supported) == (product, is_supported)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(
            info("7.17.28"),
            marks=pytest.mark.combination(
                "search",
                "Elasticsearch 7",
                "any",
                refused="Elasticsearch 7.17.28 is not supported: the sink needs 8.0 or later",
            ),
        ),
        pytest.param(
            numbered("2.3.0"),
            marks=pytest.mark.combination(
                "search",
                "OpenSearch before 2.4",
                "any",
                refused="OpenSearch 2.3.0 is not supported: the sink needs 2.4 or later",
            ),
        ),
    ],
)
def test_a_product_that_lacks_what_a_sink_needs_is_refused(answer: dict[str, object], expected_refusal: str) -> None:
    with pytest.raises(RefusedError) as caught:
        Product.of(answer).check()
    assert expected_refusal in caught.value.message


@pytest.mark.combination(
    "search",
    "Elasticsearch Serverless",
    "any",
    refused="Elasticsearch Serverless is not supported: it has no statistics of shards",
)
def test_serverless_is_refused_when_it_is_opened(expected_refusal: str) -> None:
    answer = info("8.11.0")
    answer["version"]["build_flavor"] = "serverless"
    with scripted_server([(200, answer)]) as scripted, pytest.raises(RefusedError) as caught:
        SearchSink.open(SearchConfig(url=SecretStr(scripted.url)), "shop", QUICK)
    assert expected_refusal in caught.value.message


@pytest.mark.parametrize(
    ("number", "level", "message"),
    [
        ("9.5.1", "ok", "Elasticsearch 9.5.1 answers"),
        (
            "10.1.0",
            "warn",
            "Elasticsearch 10.1.0 answers, which is not among the supported versions (OpenSearch 2 and 3, "
            "Elasticsearch 8 and 9)",
        ),
    ],
)
def test_the_check_names_the_product(number: str, level: str, message: str) -> None:
    answers: list[tuple[int, object]] = [(200, info(number)), (404, {})]
    with scripted_server(answers) as scripted:
        section = SearchConfig(url=SecretStr(scripted.url))
        found = list(search_findings("search", section, "shop", []))
    assert (found[0].level, found[0].message) == (level, message)
    assert (found[1].level, found[1].message) == ("ok", "empty")
