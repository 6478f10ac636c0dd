"""The Kafka protocol without input or output: declarations, codecs, frames.

- ``messages``: one class for each message, for all its versions
- ``schema``: how they are declared; ``fields``, ``wire``: what a declaration is made of
- ``codec``: encode and decode; ``encoding``, ``decoding``: the compilers after it
- ``framing``: headers and size prefixes
- ``registry``: requests by API key, version negotiation
- ``regex``: the syntax of regular expressions that brokers and `re` share
"""
