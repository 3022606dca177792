"""The stack in containers, with a library that only pretends: what an engine does with it is not proved here."""

import sys
from types import ModuleType
from typing import Any

import pytest

from cdc.model.errors import StackError
from watershed.devstack import postgres
from watershed.devstack.docker import DockerStack, Image, images
from watershed.devstack.endpoints import SERVICES


class FakeContainer:
    """What testcontainers' DockerContainer does, as far as we use it."""

    made: list["FakeContainer"]

    def __init__(self, image: str) -> None:
        self.image = image
        self.ports: dict[int, int] = {}
        self.env: dict[str, str] = {}
        self.command: list[str] = []
        self.events: list[str] = []
        self.made.append(self)

    def with_bind_ports(self, container: int, host: int) -> "FakeContainer":
        self.ports[container] = host
        return self

    def with_env(self, key: str, value: str) -> "FakeContainer":
        self.env[key] = value
        return self

    def with_command(self, command: list[str]) -> "FakeContainer":
        self.command = command
        return self

    def start(self) -> "FakeContainer":
        if "broken" in self.image:
            raise ConnectionError("no engine")
        self.events.append("start")
        return self

    def get_exposed_port(self, port: int) -> int:
        return self.ports[port]

    def get_wrapped_container(self) -> "FakeContainer":
        return self

    def kill(self) -> None:
        self.events.append("kill")

    def restart(self) -> None:
        self.events.append("restart")

    def stop(self) -> None:
        self.events.append("stop")


@pytest.fixture
def containers(monkeypatch: pytest.MonkeyPatch) -> list[FakeContainer]:
    FakeContainer.made = []
    library: Any = ModuleType("testcontainers.core.container")
    library.DockerContainer = FakeContainer
    monkeypatch.setitem(sys.modules, library.__name__, library)
    return FakeContainer.made


def image(name: str = "redis:test") -> Image:
    answers = iter([False, False])

    def ready(_address: str) -> bool:
        for _ in answers:
            raise ConnectionRefusedError
        return True

    return Image(name, 6379, "redis://127.0.0.1:{port}/0", ready, {"ADDRESS": "here:{port}"}, ("serve", "--fast"))


def test_a_container_is_run_waited_for_and_removed(containers: list[FakeContainer]) -> None:
    with DockerStack({"kafka": "given:9092"}, {"redis": image()}) as stack:
        endpoints = stack.start("redis", "kafka")
        (container,) = containers
        (port,) = container.ports.values()
        assert endpoints.redis_url == f"redis://127.0.0.1:{port}/0"
        assert endpoints.bootstrap_servers == "given:9092"
        assert (container.env, container.command) == ({"ADDRESS": f"here:{port}"}, ["serve", "--fast"])
        stack.start("redis")
    assert container.events == ["start", "stop"]


def test_a_killed_container_comes_back_on_its_port(containers: list[FakeContainer]) -> None:
    with DockerStack({}, {"redis": image()}) as stack:
        before = stack.start("redis").redis_url
        stack.kill("redis")
        with pytest.raises(StackError, match="redis is not running"):
            _ = stack.endpoints.redis_url
        assert stack.restart("redis").redis_url == before
    assert containers[0].events == ["start", "kill", "restart", "stop"]


def test_what_is_given_is_not_killed(containers: list[FakeContainer]) -> None:
    with DockerStack({"redis": "given"}, {"redis": image()}) as stack, pytest.raises(StackError, match="of this stack"):
        stack.kill("redis")
    assert containers == []


def test_an_engine_that_does_not_answer_is_a_sentence(containers: list[FakeContainer]) -> None:
    stack = DockerStack({}, {"redis": image("broken")})
    with pytest.raises(StackError, match="the container broken can't be started: no engine"):
        stack.start("redis")
    stack.stop()
    assert containers[0].events == ["stop"]


def test_the_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "testcontainers.core.container", None)
    with pytest.raises(StackError, match="testcontainers is not installed"):
        DockerStack({}, {"redis": image()}).start("redis")


def test_the_images_have_the_native_servers_settings() -> None:
    ours = images(16)
    assert sorted(ours) == sorted(SERVICES)
    assert ours["postgres"].name == "postgres:16"
    settings = set(ours["postgres"].command)
    for name in ("wal_level", "synchronous_commit", "fsync"):
        assert f"{name}={postgres.SETTINGS[name]}" in settings
    kafka = ours["kafka"].environment
    assert kafka["KAFKA_AUTO_CREATE_TOPICS_ENABLE"] == "false"
    assert kafka["KAFKA_ADVERTISED_LISTENERS"].format(port=5) == "PLAINTEXT://127.0.0.1:5"
