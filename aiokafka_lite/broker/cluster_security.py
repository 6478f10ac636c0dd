"""The users, tokens and certificates of a cluster."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from aiokafka_lite._threads import aside
from aiokafka_lite.broker.config import BrokerConfig
from aiokafka_lite.broker.log.disk import DiskQueue
from aiokafka_lite.broker.security.credentials import CredentialStore
from aiokafka_lite.broker.security.listener import Listener
from aiokafka_lite.broker.security.mechanisms import (
    PlainServer,
    SaslMechanism,
    SaslServer,
    ScramServer,
)
from aiokafka_lite.broker.security.session import SaslSession
from aiokafka_lite.broker.security.tls import ClientAuth
from aiokafka_lite.errors import KafkaConfigurationError
from aiokafka_lite.sasl import Secret, scram

if TYPE_CHECKING:
    from aiokafka_lite.broker.security.certificates import Certificates
    from aiokafka_lite.broker.security.oauth import TokenAuthority


class ClusterSecurity:
    """Creates the SASL sessions and TLS contexts of a cluster's listeners.

    `rng` is the source of salts, nonces and keys: the system's, or a seeded one for tests.
    """

    def __init__(
        self,
        config: BrokerConfig,
        disk: DiskQueue,
        clock: Callable[[], int],
        rng: random.Random,
    ) -> None:
        self._config = config
        self._clock = clock
        self._rng = rng
        self.credentials = CredentialStore(config.data_dir, disk.submit, self._rng)
        self._tokens: TokenAuthority | None = None
        self._certificates: Certificates | None = None
        listeners = config.all_listeners
        if any(SaslMechanism.OAUTHBEARER in listener.mechanisms for listener in listeners):
            from aiokafka_lite.broker.security.oauth import TokenAuthority

            self._tokens = TokenAuthority(
                clock, allow_unsecured=config.oauth_allow_unsecured_tokens, rng=self._rng
            )
        own = [item for item in listeners if item.protocol.has_tls and item.ssl_context is None]
        if own:
            from aiokafka_lite.broker.security.certificates import Certificates

            self._certificates = Certificates(item.host for item in own)

    async def load(self, loop: asyncio.AbstractEventLoop) -> None:
        users = {name: Secret.of(password) for name, password in self._config.users.items()}
        if self._config.data_dir is not None:
            await aside(loop, self.credentials.load)
        if users:
            await aside(loop, partial(self.credentials.add_users, users))

    # For tests

    @property
    def tokens(self) -> TokenAuthority:
        """The tokens of OAUTHBEARER. Raises KafkaConfigurationError if no listener offers it."""
        if self._tokens is None:
            raise KafkaConfigurationError(
                "the broker issues no tokens because no listener offers OAUTHBEARER: "
                "add OAUTHBEARER to the sasl_mechanisms of a listener"
            )
        return self._tokens

    @property
    def certificates(self) -> Certificates:
        """The temporary certificates. Raises KafkaConfigurationError if no listener has one."""
        if self._certificates is None:
            raise KafkaConfigurationError(
                "this broker created no certificates: it creates them only for TLS listeners "
                "without an ssl_context"
            )
        return self._certificates

    # For endpoints

    def ssl_context(self, listener: Listener) -> ssl.SSLContext | None:
        if not listener.protocol.has_tls:
            return None
        if listener.ssl_context is not None:
            return listener.ssl_context
        return self.certificates.server_context(ClientAuth(self._config.ssl_client_auth))

    def new_session(self, listener: Listener) -> SaslSession | None:
        if not listener.protocol.has_sasl:
            return None
        return SaslSession(
            listener.mechanisms,
            self._new_server,
            self._config.connections_max_reauth_ms,
            self._config.sasl_authentication_timeout_s,
            asyncio.get_running_loop(),
            self._clock,
        )

    def _new_server(self, mechanism: SaslMechanism) -> SaslServer:
        if mechanism is SaslMechanism.PLAIN:
            return PlainServer(self.credentials)
        if mechanism is SaslMechanism.OAUTHBEARER:
            from aiokafka_lite.broker.security.oauth import OAuthBearerServer

            return OAuthBearerServer(self.tokens)
        return ScramServer(scram.BY_NAME[mechanism], self.credentials, self._rng)
