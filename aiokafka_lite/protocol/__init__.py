"""The Kafka protocol without input or output: declarations, codecs, frames.

- ``messages``: one class for each message, for all its versions
- ``schema``: how they are declared; ``fields``, ``wire``: the parts of a declaration
- ``codec``: encode and decode; ``encoding``, ``decoding``: the compilers
- ``framing``: headers and size prefixes
- ``registry``: requests by API key
- ``regex``: the syntax of regular expressions that brokers and `re` share
"""
