"""The broker's half of SASL mechanisms, and the users whose credentials they check.

The messages of PLAIN (RFC 4616) are those of
org.apache.kafka.common.security.plain.internals.PlainSaslServer. See aiokafka_lite/sasl/scram.py
for the exchange of SCRAM. PLAIN and SCRAM check against the same kind of salted and iterated hash.
An unknown user gets a decoy, always the same for a name, so that responses do not reveal which
users exist. Kafka's SCRAM does reveal it."""

from __future__ import annotations

import hmac
import json
import random
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypeAlias, TypedDict

from aiokafka_lite._compat import StrEnum
from aiokafka_lite.broker.log.disk import FORMAT, load_formatted, replace_file
from aiokafka_lite.errors import KafkaStorageError, SaslAuthenticationFailed
from aiokafka_lite.sasl import Secret, scram
from aiokafka_lite.sasl.scram import (
    MIN_ITERATIONS,
    ClientFinal,
    ClientFirst,
    ScramCredential,
    ScramMechanism,
    ServerFinal,
)

CREDENTIALS_FILE: Final = "scram.json"
SALT_BYTES: Final = 16
OWNER_ONLY: Final = 0o600
# A user of `add_users` has a hash for each mechanism. PLAIN checks with this one.
PLAIN_CHECKED_BY: Final = ScramMechanism.SHA_256


class Lookup(NamedTuple):
    """A user's credential, or the decoy of an unknown user."""

    credential: ScramCredential
    is_known: bool


class _StoredCredential(TypedDict):
    salt: str
    iterations: int
    stored_key: str
    server_key: str


class _StoredCredentials(TypedDict):
    format: int
    users: dict[str, dict[str, _StoredCredential]]


class CredentialStore:
    """Credentials by mechanism and user name. `data_dir` keeps those that clients set (KIP-554)."""

    def __init__(
        self,
        data_dir: Path | None,
        run_slowly: Callable[[Callable[[], None]], None],
        rng: random.Random,
    ) -> None:
        self._path = None if data_dir is None else data_dir / CREDENTIALS_FILE
        self._run_slowly = run_slowly
        self._rng = rng
        self._decoy_key = rng.randbytes(32)
        self._scram: dict[ScramMechanism, dict[str, ScramCredential]] = {
            mechanism: {} for mechanism in ScramMechanism
        }
        self._plain: dict[str, ScramCredential] = {}
        # Credentials that clients set, which survive a restart.
        self._altered: dict[tuple[str, ScramMechanism], ScramCredential] = {}

    # Looking up

    def scram(self, mechanism: ScramMechanism, username: str) -> Lookup:
        return self._lookup(self._scram[mechanism], mechanism, username)

    def is_password(self, username: str, password: bytes) -> bool:
        known = self._lookup(self._plain, PLAIN_CHECKED_BY, username)
        made = scram.salted_password(
            PLAIN_CHECKED_BY, password, known.credential.salt, known.credential.iterations
        )
        key = scram.stored_key(PLAIN_CHECKED_BY, scram.client_key(PLAIN_CHECKED_BY, made))
        return hmac.compare_digest(key, known.credential.stored_key) and known.is_known

    def _lookup(
        self, users: Mapping[str, ScramCredential], mechanism: ScramMechanism, username: str
    ) -> Lookup:
        decoy = self._decoy(mechanism, username)
        known = users.get(username)
        return Lookup(decoy, False) if known is None else Lookup(known, True)

    def _decoy(self, mechanism: ScramMechanism, username: str) -> ScramCredential:
        name = f"{mechanism.mechanism_name},{username}".encode(errors="surrogatepass")
        salt = hmac.digest(self._decoy_key, b"salt," + name, "sha256")[:SALT_BYTES]
        key = hmac.digest(self._decoy_key, b"key," + name, mechanism.hash_name)
        return ScramCredential(salt, MIN_ITERATIONS, key, key)

    def mechanisms_of(self, username: str) -> dict[ScramMechanism, int]:
        """Return the iterations of a user's SCRAM credentials by mechanism."""
        return {
            mechanism: users[username].iterations
            for mechanism, users in self._scram.items()
            if username in users
        }

    @property
    def usernames(self) -> list[str]:
        return sorted({name for users in self._scram.values() for name in users})

    # Changing

    def add_users(self, users: Mapping[str, Secret]) -> None:
        """Add users with their passwords, for every mechanism. Takes milliseconds per user."""
        for username, password in users.items():
            for mechanism, credentials in self._scram.items():
                salt = self._rng.randbytes(SALT_BYTES)
                salted = scram.salted_password(mechanism, password.reveal(), salt, MIN_ITERATIONS)
                credentials[username] = scram.credential(mechanism, salted, salt, MIN_ITERATIONS)
            self._plain[username] = self._scram[PLAIN_CHECKED_BY][username]

    def put(self, username: str, mechanism: ScramMechanism, credential: ScramCredential) -> None:
        """Set one credential. It is durable after `DiskQueue.settled`."""
        self._scram[mechanism][username] = self._altered[username, mechanism] = credential
        self._save()

    def delete(self, username: str, mechanism: ScramMechanism) -> None:
        self._scram[mechanism].pop(username, None)
        self._altered.pop((username, mechanism), None)
        self._save()

    # Storing

    def _save(self) -> None:
        path = self._path
        if path is None:
            return
        users: dict[str, dict[str, _StoredCredential]] = {}
        for (username, mechanism), credential in self._altered.items():
            users.setdefault(username, {})[mechanism.mechanism_name] = _StoredCredential(
                salt=b64encode(credential.salt).decode(),
                iterations=credential.iterations,
                stored_key=b64encode(credential.stored_key).decode(),
                server_key=b64encode(credential.server_key).decode(),
            )
        content = json.dumps(_StoredCredentials(format=FORMAT, users=users), indent=1).encode()
        self._run_slowly(lambda: replace_file(path, content, OWNER_ONLY))

    def load(self) -> None:
        """Load the credentials that clients set earlier. Blocks on the disk."""
        if self._path is None:
            return
        try:
            content = self._path.read_bytes()
            stored: _StoredCredentials = load_formatted(self._path, content, _StoredCredentials)
            for username, credentials in stored["users"].items():
                for name, told in credentials.items():
                    credential = ScramCredential(
                        b64decode(told["salt"]),
                        told["iterations"],
                        b64decode(told["stored_key"]),
                        b64decode(told["server_key"]),
                    )
                    mechanism = scram.BY_NAME[name]
                    self._scram[mechanism][username] = credential
                    self._altered[username, mechanism] = credential
        except FileNotFoundError:
            return
        except (OSError, json.JSONDecodeError, UnicodeDecodeError) as error:
            raise KafkaStorageError(
                f"cannot read the SCRAM credentials in {self._path}: {type(error).__name__}"
            ) from None
        except (ValueError, KeyError) as error:  # a ValueError's message may quote the file
            raise KafkaStorageError(
                f"cannot load the SCRAM credentials from {self._path}, "
                f"because its content is invalid: {type(error).__name__}"
            ) from None


class SaslMechanism(StrEnum):
    """The mechanisms that a broker can offer, by their SASL names."""

    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"
    OAUTHBEARER = "OAUTHBEARER"


class Continue(NamedTuple):
    token: bytes


class Authenticated(NamedTuple):
    """The client is authenticated. `token` is the last one for the client."""

    token: bytes
    username: str
    expires_at_ms: int | None = None


Step: TypeAlias = Continue | Authenticated


class InvalidCredentialsError(Exception):
    """The credentials are wrong. The client does not get the reason, which would help guessing."""


class SaslServer(Protocol):
    """The broker's half of one exchange. `evaluate` gets the client's tokens in turn."""

    @property
    def is_slow(self) -> bool:
        """Whether `evaluate` takes milliseconds, so that it needs an executor."""

    def evaluate(self, token: bytes) -> Step: ...


PARTS: Final = 3


class PlainServer:
    is_slow: Final = True  # it hashes thousands of times

    def __init__(self, credentials: CredentialStore) -> None:
        self._credentials = credentials

    def evaluate(self, token: bytes) -> Step:
        # As in Kafka, a name or password that is not UTF-8 matches no user.
        parts = token.decode(errors="replace").split("\0", PARTS)
        if len(parts) != PARTS:
            raise SaslAuthenticationFailed(
                f"Invalid SASL/PLAIN response: expected {PARTS} tokens, got {len(parts)}"
            )
        authzid, username, password = parts
        if not username:
            raise SaslAuthenticationFailed("Authentication failed: username not specified")
        if not password:
            raise SaslAuthenticationFailed("Authentication failed: password not specified")
        if not self._credentials.is_password(username, password.encode()):
            raise SaslAuthenticationFailed("Authentication failed: Invalid username or password")
        _check_authzid(authzid, username)
        return Authenticated(b"", username)


def _check_authzid(authzid: str, username: str) -> None:
    if authzid not in ("", username):
        raise SaslAuthenticationFailed(
            "Authentication failed: Client requested an authorization id that is different "
            "from username"
        )


NONCE_BYTES: Final = 24


class ScramServer:
    """The exchange of SCRAM: two tokens of the client."""

    is_slow: Final = False  # the client does the slow hashing

    def __init__(
        self, mechanism: ScramMechanism, credentials: CredentialStore, rng: random.Random
    ) -> None:
        self._mechanism = mechanism
        self._credentials = credentials
        self._own_nonce = b64encode(rng.randbytes(NONCE_BYTES))
        self._first: ClientFirst | None = None
        # Set with the first token.
        self._known: Lookup
        self._server_first: scram.ServerFirst

    def evaluate(self, token: bytes) -> Step:
        if self._first is None:
            return self._begin(ClientFirst.parse(token))
        return self._finish(self._first, ClientFinal.parse(token))

    def _begin(self, first: ClientFirst) -> Step:
        _check_authzid(first.authzid, first.username)
        self._first = first
        self._known = self._credentials.scram(self._mechanism, first.username)
        credential = self._known.credential
        self._server_first = scram.ServerFirst(
            first.nonce + self._own_nonce, credential.salt, credential.iterations
        )
        return Continue(self._server_first.encode())

    def _finish(self, first: ClientFirst, final: ClientFinal) -> Step:
        """Check the client's final message. The complete nonce must be equal (CVE-2024-56128)."""
        credential = self._known.credential
        signed = scram.auth_message(first, self._server_first.encode(), final)
        # All checks run, so that the time of the response does not depend on the failed one.
        checks = (
            hmac.compare_digest(final.nonce, self._server_first.nonce),
            hmac.compare_digest(final.channel, first.header),
            scram.is_proof(self._mechanism, credential, signed, final.proof),
            self._known.is_known,
        )
        if not all(checks):
            raise InvalidCredentialsError
        signature = scram.signature(self._mechanism, credential.server_key, signed)
        return Authenticated(ServerFinal(signature).encode(), first.username)
