"""A real Kafka with SASL listeners, to compare with."""

from __future__ import annotations

from tests.support.real_kafka import Node, RealKafka, free_port

SESSION_MS = 3_000
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_PACKAGE = "org.apache.kafka.common.security"


class SaslKafka(RealKafka):
    """One node with three listeners: plain, with SASL, and with SASL and short sessions.

    Args:
        users: Names and passwords for PLAIN.
    """

    def __init__(self, users: dict[str, str]) -> None:
        super().__init__()
        self._users = users
        self._sasl_port, self._short_port = free_port(), free_port()

    @property
    def sasl_servers(self) -> str:
        """The listener that asks for a password."""
        return f"127.0.0.1:{self._sasl_port}"

    @property
    def short_servers(self) -> str:
        """The listener whose sessions end after `SESSION_MS`."""
        return f"127.0.0.1:{self._short_port}"

    def _settings(self, node: Node) -> dict[str, str]:
        addresses = (
            f"PLAINTEXT://127.0.0.1:{node.port},SASL://{self.sasl_servers},"
            f"SHORT://{self.short_servers}"
        )
        known = " ".join(f'user_{name}="{word}"' for name, word in self._users.items())
        jaas = {
            "plain": f"{_PACKAGE}.plain.PlainLoginModule required {known};",
            "scram-sha-256": f"{_PACKAGE}.scram.ScramLoginModule required;",
            "scram-sha-512": f"{_PACKAGE}.scram.ScramLoginModule required;",
            "oauthbearer": f"{_PACKAGE}.oauthbearer.OAuthBearerLoginModule required "
            f'unsecuredLoginStringClaim_sub="broker";',
        }
        settings = {
            **super()._settings(node),
            "listeners": f"{addresses},CONTROLLER://127.0.0.1:{node.controller_port}",
            "advertised.listeners": addresses,
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
            "SASL:SASL_PLAINTEXT,SHORT:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        }
        for listener in ("sasl", "short"):
            for mechanism, config in jaas.items():
                prefix = f"listener.name.{listener}.{mechanism}"
                settings[f"{prefix}.sasl.jaas.config"] = config
                if listener == "short":
                    settings[f"{prefix}.connections.max.reauth.ms"] = str(SESSION_MS)
        return settings
