"""Messages that a test declares: which versions they have, and what is on the wire in each."""

from __future__ import annotations

import pytest

from aiokafka_lite.errors import (
    IllegalArgumentError,
    KafkaProtocolError,
    UnsupportedVersionError,
)
from aiokafka_lite.protocol import codec, framing
from aiokafka_lite.protocol.fetch_template import compile_template
from aiokafka_lite.protocol.fields import array, blob, int8, int16, int32, nested, string, uuid
from aiokafka_lite.protocol.messages.offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from aiokafka_lite.protocol.schema import Blob, Request, Response, Struct
from aiokafka_lite.protocol.varint import encode_uvarint


def test_a_field_is_on_the_wire_in_its_versions_and_tagged_ones_in_the_order_of_their_tags() -> (
    None
):
    class Inner(Struct):
        number: int = int16("0+", default=7)

    class Declared(Blob, versions="11-14", flexible="13+"):
        text: str = string("11+")
        added: int = int16("12-13", default=-1, ignorable=True)
        ids: list[bytes] = array(uuid, "14")
        late: Inner = nested(Inner, "13+", tag=1)
        early: int = int8("13+", tag=0)

    assert (str(Declared.versions), str(Declared.flexible)) == ("11-14", "13+")
    assert not Declared.is_forward_compatible
    assert [field.name for field in Declared.schema if field.is_lazy] == ["late"]
    assert [field.name for field in Declared.schema if field.is_list] == ["ids"]
    ids = [bytes(range(16)), bytes(16)]
    for version, message, written in (
        (11, Declared(text="a"), b"\0\1a"),
        (12, Declared(text="a", added=2), b"\0\1a\0\2"),
        (13, Declared(text="a", added=2), b"\2a\0\2\0"),
        (
            13,
            Declared(text="a", early=3, late=Inner(number=5)),
            b"\2a\xff\xff" + b"\2" + b"\0\1\3" + b"\1\3\0\5\0",
        ),
        (14, Declared(text="a", ids=ids), b"\2a" + b"\3" + b"".join(ids) + b"\0"),
    ):
        assert codec.encode(message, version) == written
        assert codec.decode(Declared, version, written) == message
    assert codec.encode(Declared(text="a", added=2), 11) == b"\0\1a", "it may be left out"
    for message in (Declared(early=3), Declared(late=Inner(number=5))):
        with pytest.raises(UnsupportedVersionError, match=r"Declared\.(early|late)"):
            codec.encode(message, 12)
    with pytest.raises(IllegalArgumentError, match="does not have 16 bytes"):
        codec.encode(Declared(ids=[bytes(15)]), 14)


def test_a_struct_without_a_default_is_a_new_one_in_each_message() -> None:
    class Inner(Struct):
        numbers: list[int] = array(int16, "0+")

    class Outer(Blob, versions="0", flexible="0+"):
        inner: Inner = nested(Inner, "0+", tag=0)

    one = Outer()
    assert one.inner is one.inner
    one.inner.numbers.append(1)
    assert Outer().inner == Inner()
    assert codec.decode(Outer, 0, codec.encode(one, 0)).inner.numbers == [1]
    one.inner = Inner(numbers=[2])
    assert one.inner.numbers == [2]


def test_a_request_has_the_versions_of_its_declaration_and_its_response_has_them_too() -> None:
    class NewResponse(Response, has_plain_header=True):
        error_code: int = int16("0+")

    class NewRequest(
        Request[NewResponse],
        key=7_777,
        versions="21-26",
        flexible="24+",
        is_newest_unstable=True,
        used_from=23,
    ):
        pass

    class OldResponse(Response):
        error_code: int = int16("0+")

    class OldRequest(Request[OldResponse], key=7_778, versions="31-32", used_from=5):
        pass

    for cls, response, facts in (
        (NewRequest, NewResponse, (7_777, 21, 25, 23, "24+")),
        (OldRequest, OldResponse, (7_778, 31, 32, 31, "none")),
    ):
        found = (cls.api_key, cls.min_version, cls.max_version, cls.used_from, str(cls.flexible))
        assert found == facts
        assert cls.response is response
        assert (response.api_key, response.versions) == (cls.api_key, cls.versions)
        assert response.flexible == cls.flexible
    assert (NewResponse.has_plain_header, OldResponse.has_plain_header) == (True, False)
    with pytest.raises(TypeError, match="not a generic class"):
        NewRequest[NewResponse]  # type: ignore[misc] # that is the point


def test_a_template_has_the_bytes_of_a_request_with_a_struct_that_does_not_vary() -> None:
    class Inner(Struct):
        number: int = int16("0+")
        text: str = string("0+")
        added: int = int16("1+", default=-1)
        extra: int = int8("1+", tag=0)

    class OuterResponse(Response):
        error_code: int = int16("0+")

    class OuterRequest(Request[OuterResponse], key=7_779, versions="0-1", flexible="1+"):
        inner: Inner = nested(Inner, "0+")
        name: str = string("0+")
        count: int = int32("0+")

    for version, inner in (
        (0, Inner(number=5, text="a")),
        (1, Inner(number=5, text="a", added=6, extra=7)),
        (1, Inner()),
    ):
        request = OuterRequest(inner=inner, name="n")
        template = compile_template(request, {OuterRequest: ("count",)}, version, "me")
        request.count = 9
        assert template(5, 9) == framing.encode_request(request, version, 5, "me")
    refused = OuterRequest(inner=Inner(added=6))
    with pytest.raises(UnsupportedVersionError, match="added"):
        compile_template(refused, {OuterRequest: ("count",)}, 0, "me")(5, 9)


@pytest.mark.parametrize("version", [0, 1], ids=["plain", "flexible"])
def test_an_array_may_have_as_many_elements_as_fit_into_its_bytes_and_claim_no_more(
    version: int,
) -> None:
    class Inner(Struct):
        number: int = int16("0+")

    class Element(Struct):
        text: str = string("0+")
        content: bytes = blob("0+")
        numbers: list[int] = array(int32, "0+")
        inner: Inner = nested(Inner, "0+")
        absent: Inner | None = nested(Inner, "0+", nullable="0+", default=None)

    class Structs(Blob, versions="0-1", flexible="1+"):
        elements: list[Element] = array(Element, "0+")

    class Texts(Blob, versions="0-1", flexible="1+"):
        elements: list[str] = array(string, "0+")

    class Contents(Blob, versions="0-1", flexible="1+"):
        elements: list[bytes] = array(blob, "0+")

    class Ids(Blob, versions="0-1", flexible="1+"):
        elements: list[bytes] = array(uuid, "0+")

    class Numbers(Blob, versions="0-1", flexible="1+"):
        elements: list[int] = array(int32, "0+")

    count = 200
    for message in (
        Structs(elements=[Element() for _ in range(count)]),
        Texts(elements=[""] * count),
        Contents(elements=[b""] * count),
        Ids(elements=[bytes(16)] * count),
        Numbers(elements=[0] * count),
    ):
        body = codec.encode(message, version)
        assert codec.decode(type(message), version, body) == message
        # Two more: a byte for tagged fields follows.
        more = encode_uvarint(count + 3) if version else (count + 2).to_bytes(4, "big")
        with pytest.raises(KafkaProtocolError, match=f" is {count + 2}, which is too large"):
            codec.decode(type(message), version, more + body[len(more) :])


@pytest.mark.parametrize("groups", [[], ()])
def test_an_empty_sequence_is_left_out_of_versions_without_its_field(
    groups: list[OffsetFetchRequestGroup],
) -> None:
    body = codec.encode(OffsetFetchRequest(group_id="g", groups=groups), 7)
    assert body == codec.encode(OffsetFetchRequest(group_id="g"), 7)
