"""A broker that asks who a client is, and lets each principal do what ACLs allow."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final
from unittest import mock

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.support.tls import make_certificates
from watershed.devstack import kafka
from watershed.devstack.instance import HOST, ServerInstance, servers_home
from watershed.devstack.stack import Stack
from watershed.devstack.state import read_state

ADMIN, PASSWORD = "admin", "correct-horse"
CERTIFIED: Final = "certified"  # the name in the client's certificate
SCRAM_ITERATIONS: Final = 4096  # the least that brokers take
_USERS: Final = ("capture", "sinks", "nobody")
_LOGIN: Final = "org.apache.kafka.common.security"
_SECURED: Final = {
    "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT,MTLS:SSL",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": f"User:{ADMIN};User:ANONYMOUS",  # the controller's listener is not secured
    "listener.name.plaintext.plain.sasl.jaas.config": (
        f'{_LOGIN}.plain.PlainLoginModule required username="{ADMIN}" password="{PASSWORD}" '
        + " ".join(f'user_{name}="{PASSWORD}"' for name in (ADMIN, *_USERS))
        + ";"
    ),
    **{
        f"listener.name.plaintext.{hashed}.sasl.jaas.config": f"{_LOGIN}.scram.ScramLoginModule required;"
        for hashed in ("scram-sha-256", "scram-sha-512")
    },
    # The validator for development: tokens are not signed.
    "listener.name.plaintext.oauthbearer.sasl.jaas.config": (
        f'{_LOGIN}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="{ADMIN}";'
    ),
    # A client must show a valid token again before its token expires.
    "listener.name.plaintext.oauthbearer.connections.max.reauth.ms": "3600000",
}


def login(user: str, mechanism: str = "PLAIN", password: str = PASSWORD) -> dict[str, str]:
    """Options of librdkafka."""
    return {
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
    }


def certificate(folder: Path) -> dict[str, str]:
    """Options of librdkafka for the client's certificate."""
    return {
        "security.protocol": "ssl",
        "ssl.ca.location": str(folder / "ca.pem"),
        "ssl.certificate.location": str(folder / f"{CERTIFIED}.pem"),
        "ssl.key.location": str(folder / f"{CERTIFIED}.key"),
    }


class SecuredKafka(kafka.Kafka):
    """The stack's Kafka with an authorizer, and a listener for clients with a certificate."""

    port_names = (*kafka.Kafka.port_names, "mtls")

    def properties(self, instance: ServerInstance) -> str:
        found = dict(line.split("=", 1) for line in super().properties(instance).splitlines()) | _SECURED
        folder = instance.folder / "certificates"
        folder.mkdir(exist_ok=True)
        make_certificates(folder, "broker", CERTIFIED)
        both = "".join((folder / f"broker.{end}").read_text() for end in ("key", "pem"))
        (folder / "broker-both.pem").write_text(both)
        listener = f"MTLS://{HOST}:{instance.ports['mtls']}"
        found["listeners"] += f",{listener}"
        found["advertised.listeners"] += f",{listener}"
        prefix = "listener.name.mtls.ssl"
        found |= {
            f"{prefix}.client.auth": "required",
            f"{prefix}.keystore.type": "PEM",
            f"{prefix}.keystore.location": str(folder / "broker-both.pem"),
            f"{prefix}.truststore.type": "PEM",
            f"{prefix}.truststore.location": str(folder / "ca.pem"),
            f"{prefix}.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/",
        }
        return "".join(f"{name}={value}\n" for name, value in found.items())

    def client(self, servers: str) -> AdminClient:
        return admin_client(servers)


@cache
def admin_client(servers: str) -> AdminClient:
    """The super user's."""
    return AdminClient({"bootstrap.servers": servers, "log_level": 0, **login(ADMIN)})


@dataclass(frozen=True)
class Secured:
    """A broker that runs."""

    servers: str  # for users with a password or a token
    tls_servers: str  # for clients with a certificate
    certificates: Path


@contextmanager
def secured_kafka(folder: Path) -> Iterator[Secured]:
    """A broker that ends with the context."""
    with (
        mock.patch.object(kafka, "Kafka", SecuredKafka),
        Stack(folder, temporary=True, given={}) as stack,
    ):
        servers = stack.start("kafka").bootstrap_servers
        state = read_state(folder)
        assert state is not None
        certificates = servers_home(folder) / "kafka" / "certificates"
        yield Secured(servers, f"{HOST}:{state.ports['kafka']['mtls']}", certificates)


def add_scram_user(servers: str, user: str, mechanism: ScramMechanism = ScramMechanism.SCRAM_SHA_512) -> None:
    """With PASSWORD."""
    info = ScramCredentialInfo(mechanism, SCRAM_ITERATIONS)
    upsertion = UserScramCredentialUpsertion(user, info, PASSWORD.encode())
    for future in admin_client(servers).alter_user_scram_credentials([upsertion]).values():
        future.result(10)


def binding(user: str, resource: str, name: str, pattern: str, operation: str) -> AclBinding:
    """`resource`: Topic, Group, Cluster or TransactionalId; `pattern`: literal or prefixed."""
    kinds = {
        "Topic": ResourceType.TOPIC,
        "Group": ResourceType.GROUP,
        "Cluster": ResourceType.BROKER,
        "TransactionalId": ResourceType.TRANSACTIONAL_ID,
    }
    operations = {
        "Create": AclOperation.CREATE,
        "Describe": AclOperation.DESCRIBE,
        "DescribeConfigs": AclOperation.DESCRIBE_CONFIGS,
        "Read": AclOperation.READ,
        "Write": AclOperation.WRITE,
        "IdempotentWrite": AclOperation.IDEMPOTENT_WRITE,
        "Delete": AclOperation.DELETE,
    }
    return AclBinding(
        kinds[resource],
        name,
        ResourcePatternType.PREFIXED if pattern == "prefixed" else ResourcePatternType.LITERAL,
        f"User:{user}",
        "*",
        operations[operation],
        AclPermissionType.ALLOW,
    )


def grant(servers: str, bindings: list[AclBinding]) -> None:
    for future in admin_client(servers).create_acls(bindings).values():
        future.result(10)
