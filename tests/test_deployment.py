"""The files that users copy: the example configuration and the images. Docker is not needed to check them."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from cdc.config.config_file import Config, load_config
from cdc.config.format_options import FormatConfig
from cdc.config.stores import CacheConfig, SearchConfig, WarehouseConfig

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "deploy/watershed.example.yml"
# A type says which section it is; of `catalog` and `catalog_uri` one is needed.
NO_DEFAULTS = ("type", "catalog_uri")
SINK_SECTIONS: dict[str, type[BaseModel]] = {"search": SearchConfig, "cache": CacheConfig, "warehouse": WarehouseConfig}
OURS = ("capture", "sinks")  # images


@pytest.fixture(autouse=True)
def _no_overrides(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in [name for name in os.environ if name.startswith("CDC__")]:
        monkeypatch.delenv(name)


# The example configuration


def test_the_example_is_a_configuration() -> None:
    config = load_config(EXAMPLE)
    assert config.source.dsn.get_secret_value() == "postgresql://watershed@localhost:5432/watershed"
    assert str(config.source.table_ids[3]) == "public.order_lines"


def test_the_example_has_every_key_and_shows_the_defaults() -> None:
    def compare(model: type[BaseModel], section: dict[str, Any], where: str) -> Iterator[str]:
        if model is FormatConfig:  # Debezium's names, which have dots
            section = {name.replace(".", "_"): value for name, value in section.items()}
        if missing := model.model_fields.keys() - section.keys():
            yield f"{where} lacks {', '.join(sorted(missing))}"
        for name, field in model.model_fields.items():
            value = section.get(name)
            nested = _section(field.annotation)
            if model is Config and name == "sinks":
                for sink, options in section[name].items():
                    yield from compare(SINK_SECTIONS[options["type"]], options, f"{where}.sinks.{sink}")
            elif nested is not None and isinstance(value, dict):
                yield from compare(nested, value, f"{where}.{name}")
            elif (default := field.default) is not PydanticUndefined and name not in NO_DEFAULTS:
                if value == _as_yaml(default):
                    continue
                yield f"{where}.{name} is {value!r}, its default {field.default!r}"

    example = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    assert list(compare(Config, example, "config")) == []


def _as_yaml(default: Any) -> Any:
    return list(default) if isinstance(default, tuple) else default


def _section(annotation: Any) -> type[BaseModel] | None:
    """The model of a key that is a section, optional or not; a map from names of the user's choice is none."""
    if getattr(annotation, "__origin__", None) is dict:
        return None
    for candidate in (annotation, *getattr(annotation, "__args__", ())):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


@pytest.mark.parametrize(
    "page", ["README.md", *sorted(str(page.relative_to(ROOT)) for page in ROOT.glob("docs/*/*.md"))]
)
def test_the_documentations_examples_are_configurations(page: str, tmp_path: Path) -> None:
    """README's first one is whole; of others some show only their section."""
    blocks = [
        re.findall(r"```yaml\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), re.DOTALL)
        for name in ("README.md", page)
    ]
    whole = yaml.safe_load(blocks[0][0])
    for number, block in enumerate(blocks[1]):
        file = tmp_path / f"{number}.yml"
        example = whole | yaml.safe_load(block)
        # The base of a view or of an event log, and the outbox of the latter, may be in another example of the page.
        dependents = [*example.get("views", {}).values(), *example.get("event_logs", {}).values()]
        bases = {dependent["base"]: {"type": "sql", "url": "postgresql://base"} for dependent in dependents}
        example["sinks"] = bases | example.get("sinks", {})
        if "event_logs" in example:
            example.setdefault("outbox", {"messages": {}})
        if not any("*" in table for table in example["source"].get("tables", ())):
            example["source"]["tables"] = sorted(set(re.findall(r"public\.[a-z]+", block + blocks[0][0])))
        file.write_text(yaml.safe_dump(example), encoding="utf-8")
        assert load_config(file).topics.prefix == "shop"


# The images


def dockerfile() -> list[tuple[str, str]]:
    """(instruction, arguments), continued lines joined, comments left out."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    lines = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines if line.strip())]


def stages() -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    for instruction, arguments in dockerfile():
        if instruction == "FROM":
            found[arguments.rpartition(" AS ")[2]] = []
        list(found.values())[-1].append((instruction, arguments))
    return found


def test_our_images_run_without_privileges() -> None:
    for name in OURS:
        instructions = [instruction for instruction, _ in stages()[name]]
        users = [arguments for instruction, arguments in stages()[name] if instruction == "USER"]
        assert users == ["10001"]
        assert instructions.index("USER") < instructions.index("ENTRYPOINT")


def test_images_are_made_from_files_that_are_in_their_context() -> None:
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for pattern in allowed:
        assert list(ROOT.glob(pattern)), pattern
    assert {"pyproject.toml", "setup.py", "watershed", "cdc", "sinks", "spark_jobs", "migrations"} <= set(allowed)
    copied = [arguments.split()[:-1] for instruction, arguments in dockerfile() if instruction == "COPY"]
    for name in (name for names in copied for name in names if not name.startswith(("--from", "/"))):
        assert name == "." or any(Path(name).match(pattern) for pattern in allowed), name


@pytest.mark.parametrize(
    ("lock", "extras"),
    [
        ("capture.lock", {"registry", "msk", "telemetry"}),
        ("sinks.lock", {"search", "aws", "cache", "spark", "warehouse", "registry", "msk", "telemetry"}),
    ],
)
def test_images_have_the_packages_that_the_tests_ran_with(lock: str, extras: set[str]) -> None:
    tested = pins((ROOT / "requirements.lock").read_text(encoding="utf-8"))
    found = pins((ROOT / "deploy" / "docker" / lock).read_text(encoding="utf-8"))
    assert {name: pin for name, pin in found.items() if tested.get(name) != pin} == {}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *(text for e in extras for text in project["optional-dependencies"][e])]
    assert {Requirement(text).name.lower() for text in wanted} <= found.keys(), "run `make lock`"


def pins(lock: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Name → (version, hashes)."""
    return {
        name: (version, frozenset(re.findall(r"sha256:[0-9a-f]{64}", rest)))
        for name, version, rest in re.findall(r"^([a-z0-9-]+)==([^ ;]+)(.*\n(?: .*\n)*)", lock, re.MULTILINE)
    }
