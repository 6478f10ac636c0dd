"""SCRAM's arithmetic against the vectors of the RFCs, and its messages both ways."""

from __future__ import annotations

from base64 import b64decode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiokafka_lite.errors import KafkaProtocolError
from aiokafka_lite.sasl import scram
from aiokafka_lite.sasl.scram import (
    ClientFinal,
    ClientFirst,
    ScramMechanism,
    ServerFinal,
    ServerFirst,
)
from tests.support.for_each import for_each

# RFC 7677 section 3. (No RFC has vectors for SHA-512: other clients tell, in
# tests/broker/security/test_clients.py.)
CLIENT_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = (
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
)
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
PASSWORD = b"pencil"


def exchange(
    mechanism: ScramMechanism, password: bytes, server_first: bytes, final: ClientFinal
) -> tuple[bytes, bytes]:
    """Return a proof and a server's signature."""
    told = ServerFirst.parse(server_first)
    signed = scram.auth_message(ClientFirst.parse(CLIENT_FIRST), server_first, final)
    salted = scram.salted_password(mechanism, password, told.salt, told.iterations)
    key = scram.server_key(mechanism, salted)
    return (
        scram.client_proof(mechanism, salted, signed),
        scram.signature(mechanism, key, signed),
    )


def test_vectors_of_rfc_7677_come_out() -> None:
    final = ClientFinal.parse(CLIENT_FINAL)
    proof, signature = exchange(ScramMechanism.SHA_256, PASSWORD, SERVER_FIRST, final)
    assert final._replace(proof=proof).encode() == CLIENT_FINAL
    assert ServerFinal(signature).encode() == SERVER_FINAL
    assert ClientFirst("user", b"rOprNGfwEbeRWgbNEkqO").encode() == CLIENT_FIRST
    assert ServerFirst.parse(SERVER_FIRST).encode() == SERVER_FIRST


def test_credential_accepts_the_proof_of_its_password_only() -> None:
    told, final = ServerFirst.parse(SERVER_FIRST), ClientFinal.parse(CLIENT_FINAL)
    signed = scram.auth_message(ClientFirst.parse(CLIENT_FIRST), SERVER_FIRST, final)
    for mechanism in ScramMechanism:
        salted = scram.salted_password(mechanism, PASSWORD, told.salt, told.iterations)
        known = scram.credential(mechanism, salted, told.salt, told.iterations)
        proof = scram.client_proof(mechanism, salted, signed)
        assert len(proof) == mechanism.key_bytes
        assert scram.is_proof(mechanism, known, signed, proof)
        assert not scram.is_proof(mechanism, known, signed + b"x", proof)
        for wrong in (b"", proof[:-1], proof + b"\0", bytes(len(proof)), proof[::-1]):
            assert not scram.is_proof(mechanism, known, signed, wrong)
        other = scram.salted_password(mechanism, b"pencils", told.salt, told.iterations)
        assert not scram.is_proof(
            mechanism, known, signed, scram.client_proof(mechanism, other, signed)
        )


def test_credential_of_rfc_5803_is_what_is_kept() -> None:
    # RFC 7677's user as RFC 5803 writes it down.
    salt = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    salted = scram.salted_password(ScramMechanism.SHA_256, PASSWORD, salt, 4096)
    known = scram.credential(ScramMechanism.SHA_256, salted, salt, 4096)
    assert known.stored_key == b64decode("WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=")
    assert known.server_key == b64decode("wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=")
    assert "WG5d" not in repr(known)
    assert repr(known.stored_key) not in repr(known)


names = st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1)
nonces = st.text(
    st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters=","), min_size=1
).map(str.encode)


@given(username=names, nonce=nonces, authzid=st.just("") | names)
def test_client_first_is_read_as_it_was_written(username: str, nonce: bytes, authzid: str) -> None:
    first = ClientFirst(username, nonce, authzid)
    parsed = ClientFirst.parse(first.encode())
    assert parsed == first
    assert parsed.header + parsed.bare == first.encode()


@given(nonce=nonces, salt=st.binary(min_size=1), iterations=st.integers(1, 10**8))
def test_server_first_is_read_as_it_was_written(nonce: bytes, salt: bytes, iterations: int) -> None:
    first = ServerFirst(nonce, salt, iterations)
    assert ServerFirst.parse(first.encode()) == first


@given(nonce=nonces, proof=st.binary(min_size=1))
def test_client_final_is_read_as_it_was_written(nonce: bytes, proof: bytes) -> None:
    final = ClientFinal.unproven(b"n,,", nonce)._replace(proof=proof)
    assert ClientFinal.parse(final.encode()) == final


def test_server_final_tells_a_signature_or_an_error() -> None:
    assert ServerFinal.parse(b"v=AAEC") == ServerFinal(b"\0\1\2")
    assert ServerFinal.parse(b"e=invalid-proof").error == "invalid-proof"
    assert ServerFinal(b"", "other-error").encode() == b"e=other-error"


BAD_CLIENT_FIRST = [
    b"",
    b"\0",
    b"n,,",
    b"n,,n=user",
    b"n,,n=,r=abc",
    b"n,,n=user,r=",
    b"n,,n=us\0er,r=abc",
    b"n,,n=a=b,r=abc",
    b"n,,n=a=2c,r=abc",  # only capitals
    b"n,,n=user,r=a b",
    b"n,,m=required,n=user,r=abc",  # an extension that must be understood
    b"y,,n=user,r=abc",  # the client supports channel binding, and thinks that we do not
    b"p=tls-unique,,n=user,r=abc",  # channel binding
    b"n,a=,n=user,r=abc",
    b"n,,r=abc,n=user",
    b"n,,n=user,r=abc,",
    b"n,,n=user,r=abc\n",
    b"n,,n=\xff,r=abc",
    b"N,,n=user,r=abc",
]


@for_each(BAD_CLIENT_FIRST)
def test_malformed_client_first_is_refused(token: bytes) -> None:
    with pytest.raises(KafkaProtocolError):
        ClientFirst.parse(token)


BAD_CLIENT_FINAL = [
    b"",
    b"c=biws,r=abc",
    b"c=biws,r=abc,p=",
    b"c=,r=abc,p=AAAA",
    b"c=biws,r=abc,p=AAAA,x=y",  # a proof is last
    b"c=biws,r=abc,p=A",
    b"c=biws,r=abc,p=====",
    b"c=biws,r=a\0c,p=AAAA",
    b"r=abc,c=biws,p=AAAA",
]


@for_each(BAD_CLIENT_FINAL)
def test_malformed_client_final_is_refused(token: bytes) -> None:
    with pytest.raises(KafkaProtocolError):
        ClientFinal.parse(token)


BAD_SERVER_FIRST = [
    b"",
    b"r=abc,s=AAAA,i=0",
    b"r=abc,s=AAAA,i=-1",
    b"r=abc,s=AAAA,i=9999999999",
    b"r=abc,s=AAAA",
    b"m=x,r=abc,s=AAAA,i=4096",
    b"r=abc,s=,i=4096",
    b"r=abc,s=A,i=4096",
    b"r=abc,s=A!AAA,i=4096",
]


@for_each(BAD_SERVER_FIRST)
def test_malformed_server_first_is_refused(token: bytes) -> None:
    with pytest.raises(KafkaProtocolError):
        ServerFirst.parse(token)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_a_protocol_error(token: bytes) -> None:
    for message in (ClientFirst, ServerFirst, ClientFinal, ServerFinal):
        try:
            message.parse(token)
        except KafkaProtocolError:
            pass
