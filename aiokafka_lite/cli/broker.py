"""`python -m aiokafka_lite broker`: run the embedded broker alone, until Ctrl-C.

Passwords belong into a file, because all users of a machine can read command lines.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import importlib.util
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple
from urllib.parse import quote

from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.config import BrokerConfig
from aiokafka_lite.broker.security.listener import (
    DEFAULT_MECHANISMS,
    ClientAuth,
    Listener,
    SecurityProtocol,
    server_ssl_context,
)
from aiokafka_lite.broker.security.mechanisms import SaslMechanism
from aiokafka_lite.cli import loops
from aiokafka_lite.cli.arguments import Declaration, host_and_port, positive_int
from aiokafka_lite.cli.load import Loaded, load_file
from aiokafka_lite.cli.output import counted
from aiokafka_lite.cli.problems import CommandError, Interrupted, MissingExtraError
from aiokafka_lite.sasl import Secret

DEFAULT_LISTEN: Final = "127.0.0.1:9092"
TOKEN_LIFETIME_S: Final = 24 * 3_600
OWNER_ONLY: Final = 0o600


def user_option(text: str) -> tuple[str, Secret]:
    """Parse `name:password`. Errors do not repeat it."""
    name, _, password = text.partition(":")
    if not (name and password):
        raise argparse.ArgumentTypeError("a user must be written as name:password")
    return name, Secret(password)


def listen_option(text: str) -> tuple[str, str, str, int]:
    """Parse `[[name=]protocol://]host:port`. Missing parts are empty."""
    before, slashes, address = text.rpartition("://")
    name, _, protocol = before.rpartition("=")
    if slashes and protocol not in tuple(SecurityProtocol):
        raise argparse.ArgumentTypeError(
            f"the protocol {protocol!r} in {text!r} is not one of "
            f"{', '.join(SecurityProtocol)}: write "
            "SASL_SSL://127.0.0.1:9093, or name=SASL_SSL://127.0.0.1:9093"
        )
    return name, protocol, *host_and_port(address)


def listeners_of(options: argparse.Namespace) -> tuple[Listener, ...]:
    """Return the listeners of the checked options, with files read."""
    listeners = tuple(
        Listener(
            protocol or options.security_protocol,
            name,
            host,
            port,
            sasl_mechanisms=options.sasl_mechanism or DEFAULT_MECHANISMS,
        )
        for name, protocol, host, port in options.listen or [listen_option(DEFAULT_LISTEN)]
    )
    has_tls = any(each.protocol.has_tls for each in listeners)
    has_sasl = any(each.protocol.has_sasl for each in listeners)
    _check(options, has_tls=has_tls, has_sasl=has_sasl)
    if options.tls_client_auth is None:
        has_ca = options.tls_client_ca is not None
        options.tls_client_auth = ClientAuth.REQUIRED if has_ca else ClientAuth.NONE
    if options.tls_cert is not None:
        context = server_ssl_context(
            options.tls_cert,
            options.tls_key,
            client_auth=options.tls_client_auth,
            client_ca_file=options.tls_client_ca,
        )
        listeners = tuple(
            replace(each, ssl_context=context) if each.protocol.has_tls else each
            for each in listeners
        )
    if options.write_credentials is None:
        if has_temporary_certificates(listeners):
            raise CommandError(
                "clients cannot verify a temporary certificate without its CA: give a directory "
                "for the CA with --write-credentials, or a certificate of your own with --tls-cert"
            )
    elif not (has_temporary_certificates(listeners) or has_tokens(listeners)):
        raise CommandError(
            "--write-credentials has no files to write: it needs temporary certificates (--listen "
            "SSL://…) or tokens (--sasl-mechanism OAUTHBEARER)"
        )
    return listeners


def has_temporary_certificates(listeners: Iterable[Listener]) -> bool:
    return any(each.protocol.has_tls and each.ssl_context is None for each in listeners)


def has_tokens(listeners: Iterable[Listener]) -> bool:
    return any(SaslMechanism.OAUTHBEARER in each.mechanisms for each in listeners)


def _check(options: argparse.Namespace, *, has_tls: bool, has_sasl: bool) -> None:
    """Reject options without an effect, because their user relies on the protection."""
    of_tls = ("tls_cert", "tls_key", "tls_client_ca", "tls_client_auth")
    of_sasl = ("users_file", "user", "sasl_mechanism", "oauth_allow_unsecured_tokens")
    for names, is_there, what in (
        (of_tls, has_tls, "SSL://… or SASL_SSL"),
        (of_sasl, has_sasl, "SASL_SSL://… or SASL_PLAINTEXT"),
    ):
        for name in names:
            if getattr(options, name) and not is_there:
                option = f"--{name.replace('_', '-')}"
                raise CommandError(f"{option} needs a matching listener: --listen {what}://…")
    if options.tls_cert is None and (options.tls_key or options.tls_client_ca):
        raise CommandError("--tls-key and --tls-client-ca need --tls-cert")
    is_token = SaslMechanism.OAUTHBEARER in options.sasl_mechanism
    if options.oauth_allow_unsecured_tokens and not is_token:
        raise CommandError("--oauth-allow-unsecured-tokens needs --sasl-mechanism OAUTHBEARER")
    # The data may have SCRAM users of admin tools.
    if has_sasl and not (options.users_file or options.user or is_token or options.data):
        raise CommandError(
            "SASL needs at least one user: give --users-file FILE, with lines like name:password"
        )


def _users(options: argparse.Namespace) -> dict[str, Secret]:
    users = {} if options.users_file is None else read_users(options.users_file)
    for name, password in options.user:
        if name in users:
            raise CommandError(f"--user {name}: the user is defined twice")
        users[name] = password
    return users


def read_users(path: Path) -> dict[str, Secret]:
    """Read names and passwords. Errors name a bad line, but do not show it."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "the file is not UTF-8"
        raise CommandError(f"cannot read the users in {path}: {reason}") from None
    users: dict[str, Secret] = {}
    # splitlines() would split at some characters of passwords.
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            name, password = user_option(line)
        except argparse.ArgumentTypeError as error:
            raise CommandError(f"{path}, line {number}: {error}") from None
        if name in users:
            raise CommandError(f"{path}, line {number}: the user {name} is defined twice")
        users[name] = password
    return users


def write_credentials(broker: Broker, folder: Path) -> list[str]:
    """Write the files that clients need, and return texts about them."""
    listeners = broker.config.all_listeners
    try:
        folder.mkdir(parents=True, exist_ok=True)
        said = []
        if has_temporary_certificates(listeners):
            files = broker.certificates.write(folder)
            said.append(
                f"certificates: {files.ca} (the CA that clients must trust), "
                f"{files.client} (a client certificate with its key)"
            )
        if has_tokens(listeners):
            users = broker.config.users or ("client",)
            tokens = [_write_token(broker, folder, name) for name in users]
            said.append(f"tokens, valid for one day: {', '.join(map(str, tokens))}")
    except OSError as error:
        raise CommandError(f"cannot write to {folder}: {error.strerror}") from None
    return said


def _write_token(broker: Broker, folder: Path, name: str) -> Path:
    path = folder / f"{quote(name, safe=' @')}.jwt"
    path.touch(OWNER_ONLY)
    path.write_text(broker.oauth_token(name, lifetime_s=TOKEN_LIFETIME_S))
    return path


def endpoints_text(broker: Broker) -> str:
    listeners = broker.config.all_listeners
    if [each.name for each in listeners] == [SecurityProtocol.PLAINTEXT]:
        return broker.bootstrap_servers
    return "; ".join(
        (f"{each.name} " if each.name == each.protocol else f"{each.name} ({each.protocol.value}) ")
        + broker.bootstrap_servers_of(each.name)
        for each in listeners
    )


# The numeric settings without an option of their own.
_SETTINGS: Final = tuple(
    field.name
    for field in dataclasses.fields(BrokerConfig)
    if field.type in ("int", "PositiveInt", "float")
    and field.name not in ("nodes", "port", "num_partitions")
)


class TopicOption(NamedTuple):
    """A topic to create."""

    name: str
    partitions: int | None = None
    configs: Mapping[str, str] = MappingProxyType({})


def topic_option(text: str) -> TopicOption:
    """Parse `name`, `name:partitions` or `name:partitions:config=value,…`.

    Values may contain commas (cleanup.policy=compact,delete): only a comma before `config=`
    separates.
    """
    name, _, rest = text.partition(":")
    partitions, _, config_text = rest.partition(":")
    if not name:
        raise argparse.ArgumentTypeError(f"{text!r} has no topic name: write name:partitions")
    configs: dict[str, str] = {}
    for each in re.split(r",(?=[a-z.]+=)", config_text) if config_text else ():
        config, equals, value = each.partition("=")
        if not (config and equals):
            raise argparse.ArgumentTypeError(
                f"{each!r} in {text!r} is not a topic setting: write "
                "name:partitions:retention.ms=-1,cleanup.policy=compact"
            )
        configs[config] = value
    return TopicOption(name, positive_int(partitions) if partitions else None, configs)


def port_number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: write a number from 0 to 65535")
    return int(text)


def setting_option(text: str) -> tuple[str, int | float]:
    name, _, value = text.partition("=")
    if name not in _SETTINGS:
        raise argparse.ArgumentTypeError(
            f"there is no setting {name!r}. The settings are {_SETTINGS}"
        )
    try:
        return name, int(value) if value.isdecimal() else float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{value!r} is not a number: write {name}=1") from None


_BROKER: Final = f"""
Run a Kafka broker for tests and local development, until Ctrl-C. The broker accepts clients without
a password unless security options are given, and its nodes share one process: do not use it in
production.

arguments:
--listen [[NAME=]PROTOCOL://]HOST:PORT ...
  the address to listen on (default: {DEFAULT_LISTEN}). Port 0 selects a free port. The first node
  uses this port, and further nodes use the following ports. PROTOCOL is PLAINTEXT, SSL,
  SASL_PLAINTEXT or SASL_SSL (default: --security-protocol). Repeatable with different values of
  NAME (default: PROTOCOL)
--allow-remote
  allow --listen addresses that other machines can reach (without SASL, every client that reaches
  such an address can read, write and delete all data)
--nodes N  the number of nodes in the cluster, each with its own port (default: =1)
--data DIR
  keep topics, records and committed offsets in this directory (default: keep them in memory)
--topic NAME:PARTITIONS[:CONFIG=VALUE,…] ...  create a topic unless it exists (repeatable)
--load FILE.jsonl
  load the records of this file into empty topics. Its lines are like {{"topic": "orders",
  "key": "42", "value": {{"amount": 3}}, "headers": {{}}, "partition": 0,
  "timestamp": 1767225600000}}, with {{"base64": "…"}} for binary data
--num-partitions N
  the number of partitions of a new topic, unless the request sets it (default: =1)
--no-auto-create  do not create a missing topic when a client first uses it
--status-port PORT  the port of the status page on 127.0.0.1 (default: a free port)
| --no-status  serve no status page
--loop  the event loop to run on (default: =asyncio)
--set NAME=NUMBER ...
  any other numeric setting of the broker, such as log_cleaner_backoff_ms (repeatable)

listeners with TLS or SASL:
--security-protocol  the protocol of each --listen without PROTOCOL (default: =PLAINTEXT)
--users-file FILE
  a file with the SASL users, one name:password per line (empty lines and lines that begin with #
  are ignored)
--user NAME:PASSWORD ...
  one SASL user, as name:password (repeatable). Other users of this machine can read command lines,
  so --users-file is safer
--sasl-mechanism ...
  a SASL mechanism to offer, repeatable (default: PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512)
--oauth-allow-unsecured-tokens
  with OAUTHBEARER, also accept unsigned tokens, as Kafka does by default
--tls-cert FILE.pem  the broker's certificate, with its chain (default: a temporary certificate)
--tls-key FILE.pem
  the unencrypted private key of --tls-cert (default: the key in the file of --tls-cert)
--tls-client-auth
  whether clients must present a certificate (default: none, or required if --tls-client-ca is
  given)
--tls-client-ca FILE.pem  the CA that signs the clients' certificates (needs --tls-cert)
--write-credentials DIR
  write files for clients to this directory. For temporary certificates: ca.pem, and client.pem with
  its key. For OAUTHBEARER: a token NAME.jwt per user (client.jwt without users), valid for one day
--allow-cleartext-credentials
  with --allow-remote: let clients send passwords over the network without TLS
"""


def run(options: argparse.Namespace) -> int:
    try:
        loops.run(_serve(options), options.loop)
    except Interrupted:
        print("\nbroker stopped", flush=True)
    return 0


async def _serve(options: argparse.Namespace) -> None:
    async with _broker(options) as broker:
        for topic in options.topic:
            if not broker.has_topic(topic.name):
                broker.create_topic(topic.name, topic.partitions, topic.configs)
        loaded = None
        if options.load is not None:
            loaded = await load_file(broker, options.load)
        credentials: list[str] = []
        if options.write_credentials is not None:
            credentials = write_credentials(broker, options.write_credentials)
        # Clients may produce after the lines below, and must not lose records with the topic.
        await broker.disk.settled()
        async with serve_status(
            broker, is_wanted=not options.no_status, port=options.status_port
        ) as status:
            where = endpoints_text(broker)
            place = f"data in {options.data}" if options.data else "data in memory"
            _say(
                f"TEST ONLY broker listening on {where}, {place}, not for production. Ctrl-C "
                "stops it."
            )
            for line in credentials:
                _say(line)
            if loaded is not None:
                _report(loaded, options.load)
            if status is not None:
                _say(f"status: {status}")
            await asyncio.Event().wait()


def _broker(options: argparse.Namespace) -> Broker:
    listeners = listeners_of(options)
    try:
        return Broker(
            nodes=options.nodes,
            listeners=listeners,
            users=_users(options),
            ssl_client_auth=options.tls_client_auth,
            oauth_allow_unsecured_tokens=options.oauth_allow_unsecured_tokens,
            allow_cleartext_credentials=options.allow_cleartext_credentials,
            data_dir=options.data,
            num_partitions=options.num_partitions,
            auto_create_topics=not options.no_auto_create,
            allow_remote=options.allow_remote,
            **dict(options.set),
        )
    except ValueError as error:
        raise CommandError(str(error)) from None


def _report(loaded: Loaded, path: Path) -> None:
    for topic, count in loaded.counts.items():
        _say(f"loaded {counted(count, 'record')} from {path} into {topic}")
    for topic in loaded.left_alone:
        _say(f"loaded no records into {topic}, because this topic already has records")


@asynccontextmanager
async def serve_status(
    broker: Broker, *, is_wanted: bool, port: int | None
) -> AsyncIterator[str | None]:
    """Serve the status page, and yield a text about it, or None if it is not wanted.

    `port` None is a free port. Then a missing aiohttp is no error.
    """
    if not is_wanted:
        yield None
        return
    if importlib.util.find_spec("aiohttp") is None:
        if port is not None:
            raise MissingExtraError("aiohttp", extra="http")
        yield "off, because aiohttp is not installed: pip install 'aiokafka-lite[http]'"
        return
    # Imported here, because it imports aiohttp.
    from aiokafka_lite.cli.status import serve

    async with serve(broker, port=port or 0) as url:
        yield url


def _say(line: str) -> None:
    print(line, flush=True)


COMMANDS: Final = {
    "broker": Declaration(
        run,
        _BROKER,
        {
            "listen": listen_option,
            "topic": topic_option,
            "status_port": port_number,
            "loop": loops.LoopKind,
            "set": setting_option,
            "security_protocol": SecurityProtocol,
            "user": user_option,
            "sasl_mechanism": SaslMechanism,
            "tls_client_auth": ClientAuth,
        },
        connects=False,
    )
}
