"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677) in Kafka (KIP-84).

    client                                            broker
    n,,n=user,r=cnonce                       →
                                             ←        r=cnonce‖snonce,s=salt,i=iterations
    c=biws,r=cnonce‖snonce,p=ClientProof     →
                                             ←        v=ServerSignature

    SaltedPassword  = PBKDF2(password, salt, iterations)
    ClientKey       = HMAC(SaltedPassword, "Client Key")        StoredKey = H(ClientKey)
    ServerKey       = HMAC(SaltedPassword, "Server Key")
    AuthMessage     = client-first-bare , server-first , client-final-without-proof
    ClientProof     = ClientKey XOR HMAC(StoredKey, AuthMessage)
    ServerSignature = HMAC(ServerKey, AuthMessage)

The broker keeps salt, iterations, StoredKey and ServerKey, with which it can check a proof but not
create one. Names and passwords are UTF-8 without SASLprep, as in all Kafka clients. Parsers raise
`KafkaProtocolError`.
"""

from __future__ import annotations

import binascii
import enum
import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from typing import Final, NamedTuple

from aiokafka_lite.errors import KafkaProtocolError

MIN_ITERATIONS: Final = 4_096
# A client's limit, against brokers that want to keep it busy.
MAX_ITERATIONS: Final = 1_000_000
# "n,," in base64: no channel binding, no authorisation id.
NO_CHANNEL_BINDING: Final = b"n,,"

_NAME: Final = rb"(?!,)[^\x00,=]*(?:=(?:2C|3D)[^\x00,=]*)*"
_NONCE: Final = rb"[\x21-\x2b\x2d-\x7e]+"
_BASE64: Final = rb"[A-Za-z0-9+/]+={0,2}"
_EXTENSIONS: Final = rb"(?:,[A-Za-z]+=[^\x00,]+)*"

_CLIENT_FIRST: Final = re.compile(
    rb"(?P<header>n,(?:a=(?P<authzid>%b))?,)"
    rb"(?P<bare>n=(?P<name>%b),r=(?P<nonce>%b)(?P<extensions>%b))"
    % (_NAME, _NAME, _NONCE, _EXTENSIONS)
)
_SERVER_FIRST: Final = re.compile(
    rb"r=(?P<nonce>%b),s=(?P<salt>%b),i=(?P<iterations>[1-9][0-9]{0,8})%b"
    % (_NONCE, _BASE64, _EXTENSIONS)
)
_CLIENT_FINAL: Final = re.compile(
    rb"(?P<without_proof>c=(?P<channel>%b),r=(?P<nonce>%b)%b),p=(?P<proof>%b)"
    % (_BASE64, _NONCE, _EXTENSIONS, _BASE64)
)
_SERVER_FINAL: Final = re.compile(
    rb"(?:e=(?P<error>[^\x00,]+)|v=(?P<signature>%b))%b" % (_BASE64, _EXTENSIONS)
)


class ScramMechanism(enum.Enum):
    """The two mechanisms. `code` is KIP-554's number."""

    SHA_256 = ("SCRAM-SHA-256", "sha256", 1)
    SHA_512 = ("SCRAM-SHA-512", "sha512", 2)

    def __init__(self, mechanism_name: str, hash_name: str, code: int) -> None:
        self.mechanism_name: Final = mechanism_name
        self.hash_name: Final = hash_name
        self.code: Final = code

    @property
    def key_bytes(self) -> int:
        """The length of every key, proof and signature."""
        return hashlib.new(self.hash_name).digest_size


BY_NAME: Final = {mechanism.mechanism_name: mechanism for mechanism in ScramMechanism}


class ScramCredential(NamedTuple):
    """A broker's data of a user's password. The repr shows no key."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        return f"ScramCredential(iterations={self.iterations})"


# --- Arithmetic ------------------------------------------------------------------------------
def salted_password(
    mechanism: ScramMechanism, password: bytes, salt: bytes, iterations: int
) -> bytes:
    """Hash a password in some milliseconds. Call it in an executor (it releases the GIL)."""
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password, salt, iterations)


def client_key(mechanism: ScramMechanism, salted: bytes) -> bytes:
    return hmac.digest(salted, b"Client Key", mechanism.hash_name)


def stored_key(mechanism: ScramMechanism, key: bytes) -> bytes:
    return hashlib.new(mechanism.hash_name, key).digest()


def server_key(mechanism: ScramMechanism, salted: bytes) -> bytes:
    return hmac.digest(salted, b"Server Key", mechanism.hash_name)


def credential(
    mechanism: ScramMechanism, salted: bytes, salt: bytes, iterations: int
) -> ScramCredential:
    stored = stored_key(mechanism, client_key(mechanism, salted))
    return ScramCredential(salt, iterations, stored, server_key(mechanism, salted))


def client_proof(mechanism: ScramMechanism, salted: bytes, auth_message: bytes) -> bytes:
    key = client_key(mechanism, salted)
    return _xor(key, signature(mechanism, stored_key(mechanism, key), auth_message))


def is_proof(
    mechanism: ScramMechanism, known: ScramCredential, auth_message: bytes, proof: bytes
) -> bool:
    """Whether a proof was made with the credential's password, in constant time."""
    if len(proof) != mechanism.key_bytes:
        return False
    key = _xor(proof, signature(mechanism, known.stored_key, auth_message))
    return hmac.compare_digest(stored_key(mechanism, key), known.stored_key)


def signature(mechanism: ScramMechanism, key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, mechanism.hash_name)


def _xor(left: bytes, right: bytes) -> bytes:
    joined = int.from_bytes(left, "big") ^ int.from_bytes(right, "big")
    return joined.to_bytes(len(right), "big")


# --- Messages --------------------------------------------------------------------------------
class ClientFirst(NamedTuple):
    """The login request. `authzid` is empty if it is the user's own name."""

    username: str
    nonce: bytes
    authzid: str = ""
    extensions: bytes = b""

    @property
    def bare(self) -> bytes:
        """The part that is signed."""
        return b"n=%b,r=%b%b" % (_quoted(self.username), self.nonce, self.extensions)

    @property
    def header(self) -> bytes:
        """The part that the client's final message repeats in base64 (RFC 5802's gs2-header)."""
        return b"n,a=%b," % _quoted(self.authzid) if self.authzid else NO_CHANNEL_BINDING

    def encode(self) -> bytes:
        return self.header + self.bare

    @classmethod
    def parse(cls, token: bytes) -> ClientFirst:
        match = _parse(_CLIENT_FIRST, token, "client's first")
        return cls(
            username=_unquoted(match["name"]),
            nonce=match["nonce"],
            authzid=_unquoted(match["authzid"] or b""),
            extensions=match["extensions"],
        )


class ServerFirst(NamedTuple):
    """The parameters of hashing, to be checked, and the client's nonce with the broker's."""

    nonce: bytes
    salt: bytes
    iterations: int

    def encode(self) -> bytes:
        return b"r=%b,s=%b,i=%d" % (self.nonce, b64encode(self.salt), self.iterations)

    @classmethod
    def parse(cls, token: bytes) -> ServerFirst:
        match = _parse(_SERVER_FIRST, token, "server's first")
        return cls(match["nonce"], _decoded(match["salt"]), int(match["iterations"]))


class ClientFinal(NamedTuple):
    """The proof, and the rest of the signed text."""

    channel: bytes
    nonce: bytes
    proof: bytes
    without_proof: bytes

    def encode(self) -> bytes:
        return b"%b,p=%b" % (self.without_proof, b64encode(self.proof))

    @classmethod
    def unproven(cls, header: bytes, nonce: bytes) -> ClientFinal:
        """Create a message without its proof, which signs `without_proof`."""
        return cls(header, nonce, b"", b"c=%b,r=%b" % (b64encode(header), nonce))

    @classmethod
    def parse(cls, token: bytes) -> ClientFinal:
        match = _parse(_CLIENT_FINAL, token, "client's final")
        return cls(
            channel=_decoded(match["channel"]),
            nonce=match["nonce"],
            proof=_decoded(match["proof"]),
            without_proof=match["without_proof"],
        )


class ServerFinal(NamedTuple):
    """The broker's proof, or an error."""

    signature: bytes
    error: str = ""

    def encode(self) -> bytes:
        return b"e=%b" % self.error.encode() if self.error else b"v=%b" % b64encode(self.signature)

    @classmethod
    def parse(cls, token: bytes) -> ServerFinal:
        match = _parse(_SERVER_FINAL, token, "server's final")
        if match["error"] is not None:
            return cls(b"", match["error"].decode(errors="replace"))
        return cls(_decoded(match["signature"]))


def auth_message(first: ClientFirst, server: bytes, final: ClientFinal) -> bytes:
    """Return the text that both sides sign. `server` is the broker's first message, as sent."""
    return b",".join((first.bare, server, final.without_proof))


def _parse(pattern: re.Pattern[bytes], token: bytes, which: str) -> re.Match[bytes]:
    match = pattern.fullmatch(token)
    if match is None:
        # The token is not shown, because it may contain a proof.
        raise KafkaProtocolError(
            f"expected the SCRAM {which} message, but the peer sent {len(token)} bytes that are "
            "not such a message"
        )
    return match


def _quoted(name: str) -> bytes:
    return name.replace("=", "=3D").replace(",", "=2C").encode()


def _unquoted(name: bytes) -> str:
    try:
        return name.decode().replace("=2C", ",").replace("=3D", "=")
    except UnicodeDecodeError:
        raise KafkaProtocolError("a SCRAM message contains a user name that is not UTF-8") from None


def _decoded(encoded: bytes) -> bytes:
    try:
        return b64decode(encoded)
    except binascii.Error:
        raise KafkaProtocolError("a SCRAM message contains invalid base64") from None
