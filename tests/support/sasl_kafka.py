"""A real Kafka with TLS and SASL listeners, to compare with."""

from __future__ import annotations

from tests.support.certificates import Authority
from tests.support.ports import free_port
from tests.support.real_kafka import Node, RealKafka

SESSION_MS = 3_000
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_PACKAGE = "org.apache.kafka.common.security"
# Names of listeners, and what is spoken there.
_LISTENERS = {
    "SASL": "SASL_PLAINTEXT",
    "SHORT": "SASL_PLAINTEXT",
    "PLAINONLY": "SASL_PLAINTEXT",
    "TLS": "SSL",
    "MUTUAL": "SSL",
    "SASLTLS": "SASL_SSL",
}


class SaslKafka(RealKafka):
    """One node with seven listeners: without anything, and with TLS, SASL, or both.

    Args:
        users: Names and passwords for PLAIN.

    Attributes:
        authority: Signed what the listeners with TLS show, for 127.0.0.1, and what clients show.
    """

    def __init__(self, users: dict[str, str]) -> None:
        super().__init__()
        self._users = users
        self._ports = {name: free_port() for name in _LISTENERS}
        self.authority = Authority()

    @property
    def sasl_servers(self) -> str:
        """The listener that asks for a password."""
        return self._at("SASL")

    @property
    def short_servers(self) -> str:
        """The listener whose sessions end after `SESSION_MS`."""
        return self._at("SHORT")

    @property
    def plain_only_servers(self) -> str:
        """The listener that knows PLAIN and no other mechanism."""
        return self._at("PLAINONLY")

    @property
    def tls_servers(self) -> str:
        """The listener with TLS."""
        return self._at("TLS")

    @property
    def mutual_tls_servers(self) -> str:
        """The listener with TLS that asks for a client's certificate."""
        return self._at("MUTUAL")

    @property
    def sasl_tls_servers(self) -> str:
        """The listener that asks for a password, within TLS."""
        return self._at("SASLTLS")

    def _at(self, listener: str) -> str:
        return f"127.0.0.1:{self._ports[listener]}"

    def _settings(self, node: Node) -> dict[str, str]:
        named = [f"{name}://{self._at(name)}" for name in _LISTENERS]
        addresses = ",".join([f"PLAINTEXT://127.0.0.1:{node.port}", *named])
        spoken = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", **_LISTENERS}
        protocols = ",".join(f"{name}:{protocol}" for name, protocol in spoken.items())
        return {
            **super()._settings(node),
            "listeners": f"{addresses},CONTROLLER://127.0.0.1:{node.controller_port}",
            "advertised.listeners": addresses,
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": protocols,
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            **self._tls_settings(node),
            **self._sasl_settings(),
        }

    def _tls_settings(self, node: Node) -> dict[str, str]:
        keystore, trusted = node.home / "broker.pem", node.home / "ca.pem"
        if not keystore.exists():
            self.authority.issue("127.0.0.1").write(keystore)
            trusted.write_text(self.authority.pem)
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(keystore),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(trusted),
            "listener.name.mutual.ssl.client.auth": "required",
        }

    def _sasl_settings(self) -> dict[str, str]:
        known = " ".join(f'user_{name}="{word}"' for name, word in self._users.items())
        jaas = {
            "plain": f"{_PACKAGE}.plain.PlainLoginModule required {known};",
            "scram-sha-256": f"{_PACKAGE}.scram.ScramLoginModule required;",
            "scram-sha-512": f"{_PACKAGE}.scram.ScramLoginModule required;",
            "oauthbearer": f"{_PACKAGE}.oauthbearer.OAuthBearerLoginModule required "
            f'unsecuredLoginStringClaim_sub="broker";',
        }
        settings = {"listener.name.plainonly.sasl.enabled.mechanisms": "PLAIN"}
        for name, protocol in _LISTENERS.items():
            if not protocol.startswith("SASL"):
                continue
            listener = name.lower()
            for mechanism, config in jaas.items():
                prefix = f"listener.name.{listener}.{mechanism}"
                settings[f"{prefix}.sasl.jaas.config"] = config
                if name == "SHORT":
                    settings[f"{prefix}.connections.max.reauth.ms"] = str(SESSION_MS)
        return settings
