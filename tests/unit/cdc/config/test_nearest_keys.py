"""An unknown key names the known one that it resembles."""

from pathlib import Path

import pytest

from cdc.config.config_file import Config
from cdc.config.settings import keys_at
from cdc.config.stores import sink_config
from cdc.model.errors import ConfigError
from cdc.model.suggestions import did_you_mean
from tests.unit.cdc.config.test_config_file import changed, load, minimal, refusal


@pytest.mark.parametrize(
    ("path", "value", "reported"),
    [
        ("sink", {}, "sink: unknown key; did you mean sinks?"),
        ("source.publicaton", "x", "source.publicaton: unknown key; did you mean publication?"),
        ("source.sslmode", "require", "source.sslmode: unknown key"),
        (
            "sinks.cache",
            {"url": "redis://c", "key_prefx": "x"},
            "sinks.cache.key_prefx: unknown key; did you mean key_p",
        ),
        (
            "sinks.users",
            {"type": "search", "url": "http://s", "shapes": {"*": {"setings": {}}}},
            "sinks.users.shapes.*.setings: unknown key; did you mean settings?",
        ),
        (
            "sinks.cache",
            {"url": "redis://c", "mapping": {"public.orders": {"were": "a = 1"}}},
            "sinks.cache.mapping.public.orders.were: unknown key; did you mean where?",
        ),
        ("http.users", {"me": {"rol": "read"}}, "http.users.me.rol: unknown key; did you mean role?"),
        (
            "format",
            {"decimal.handling.mod": "string"},
            "format.decimal_handling_mod: unknown key; did you mean decimal_h",
        ),
        ("topics.config", {"tabel": {}}, "topics.config.tabel: unknown key; did you mean table?"),
    ],
)
def test_the_nearest_key_is_named(tmp_path: Path, path: str, value: object, reported: str) -> None:
    assert reported in refusal(tmp_path, changed(path, value))


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("search", "url", ["http://a:9200", "http://b:9200"]),
        ("cache", "urls", ["redis://a", "redis://b"]),
        ("sql", "targets", [{"url": "sqlite:////a.db"}, {"url": "sqlite:////b.db"}]),
    ],
)
def test_a_sink_with_several_targets_is_told_what_to_write_instead(
    tmp_path: Path, kind: str, key: str, value: object
) -> None:
    said = refusal(tmp_path, changed("sinks.users", {"type": kind, key: value}))
    assert f"sinks.users.{key}: " in said and "a sink writes to one store: give each store a section of its own" in said
    assert ("separated by commas" in said) == (key == "url")


def test_a_type_that_is_left_out_does_not_hide_the_keys_of_a_store() -> None:
    assert "key_prefix" in keys_at(Config, ["sinks", "users", "cache"])
    assert "index_prefix" not in keys_at(Config, ["sinks", "users", "cache"])
    assert keys_at(Config, ["sinks", "users", "cache", "nothing", "known"]) == frozenset()


def test_a_mistyped_section_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC__SORCE__DSN", "secret")
    with pytest.raises(ConfigError, match=r"CDC__SORCE__DSN names no section; did you mean source\?"):
        load(tmp_path, minimal())


def test_a_mistyped_sink(tmp_path: Path) -> None:
    config = load(tmp_path, changed("sinks.search", {"url": "http://s"}))
    with pytest.raises(ConfigError, match=r"the configuration has no sink 'serach'; did you mean search\?"):
        sink_config(config.sinks, "serach")


@pytest.mark.parametrize(
    ("name", "known", "end"),
    [
        ("public.ordres", ["public.orders", "public.items"], "; did you mean public.orders?"),
        ("Search", ["search"], "; did you mean search?"),
        ("orders", ["public.customers"], ""),
        ("orders", [], ""),
    ],
)
def test_only_what_resembles_is_suggested(name: str, known: list[str], end: str) -> None:
    assert did_you_mean(name, known) == end
