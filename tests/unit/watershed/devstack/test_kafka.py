"""How Kafka is set up; what it then does is in tests/integration/test_stack.py."""

from pathlib import Path

from watershed.devstack.instance import ServerInstance
from watershed.devstack.kafka import bootstrap_servers, properties


def settings(folder: Path) -> dict[str, str]:
    instance = ServerInstance(folder, {"kafka": 20_001, "controller": 20_002}, "identity", None, folder)
    assert bootstrap_servers(instance) == "127.0.0.1:20001"
    return dict(line.split("=", 1) for line in properties(instance).splitlines())


def test_broker_and_controller_listen_on_this_machine_alone(tmp_path: Path) -> None:
    found = settings(tmp_path)
    assert found["listeners"] == "PLAINTEXT://127.0.0.1:20001,CONTROLLER://127.0.0.1:20002"
    assert found["advertised.listeners"] == "PLAINTEXT://127.0.0.1:20001"
    assert found["controller.quorum.voters"] == "1@127.0.0.1:20002"
    assert found["log.dirs"] == f"{tmp_path}/data"


def test_one_broker_is_enough_for_transactions_and_groups(tmp_path: Path) -> None:
    found = settings(tmp_path)
    for name in ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic"):
        assert found[f"{name}.replication.factor"] == "1"
    assert found["transaction.state.log.min.isr"] == "1"
    assert found["auto.create.topics.enable"] == "false"
