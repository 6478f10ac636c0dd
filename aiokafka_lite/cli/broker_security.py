"""The broker's listeners, users and TLS, as options of the command line.

Passwords belong into a file, because all users of a machine can read command lines.
"""

from __future__ import annotations

import argparse
import ssl
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.security.listener import DEFAULT_MECHANISMS, Listener, SecurityProtocol
from aiokafka_lite.broker.security.mechanisms import SaslMechanism
from aiokafka_lite.broker.security.tls import ClientAuth, server_ssl_context
from aiokafka_lite.cli.arguments import host_and_port
from aiokafka_lite.cli.problems import CommandError
from aiokafka_lite.sasl import Secret

DEFAULT_LISTEN: Final = "127.0.0.1:9092"
TOKEN_LIFETIME_S: Final = 24 * 3_600
OWNER_ONLY: Final = 0o600


class BrokerSecurity(NamedTuple):
    """`client_auth` is for temporary certificates. `out_dir` is for files that clients need."""

    listeners: tuple[Listener, ...]
    users: Mapping[str, Secret]
    client_auth: ClientAuth
    out_dir: Path | None

    @property
    def has_temporary_certificates(self) -> bool:
        return any(each.protocol.has_tls and each.ssl_context is None for each in self.listeners)

    @property
    def has_tokens(self) -> bool:
        return any(SaslMechanism.OAUTHBEARER in each.mechanisms for each in self.listeners)


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


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--listen",
        type=listen_option,
        action="append",
        metavar="[[NAME=]PROTOCOL://]HOST:PORT",
        help=f"the address to listen on (default: {DEFAULT_LISTEN}). Port 0 selects a free port. "
        "The first node uses this port, and further nodes use the following ports. PROTOCOL is "
        "PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL (default: --security-protocol). Repeatable "
        "with different values of NAME (default: PROTOCOL)",
    )
    parser.add_argument(
        "--allow-remote",
        action="store_true",
        help="allow --listen addresses that other machines can reach (without SASL, every client "
        "that reaches such an address can read, write and delete all data)",
    )
    group = parser.add_argument_group("listeners with TLS or SASL")
    group.add_argument(
        "--security-protocol",
        type=str.upper,
        choices=list(SecurityProtocol),
        default=SecurityProtocol.PLAINTEXT,
        help="the protocol of each --listen without PROTOCOL (default: %(default)s)",
    )
    group.add_argument(
        "--users-file",
        type=Path,
        metavar="FILE",
        help="a file with the SASL users, one name:password per line (empty lines and lines that "
        "begin with # are ignored)",
    )
    group.add_argument(
        "--user",
        type=user_option,
        action="append",
        default=[],
        metavar="NAME:PASSWORD",
        help="one SASL user, as name:password (repeatable). Other users of this machine can read "
        "command lines, so --users-file is safer",
    )
    group.add_argument(
        "--sasl-mechanism",
        type=SaslMechanism,
        choices=list(SaslMechanism),
        action="append",
        help="a SASL mechanism to offer, repeatable (default: PLAIN, SCRAM-SHA-256 and "
        "SCRAM-SHA-512)",
    )
    group.add_argument(
        "--oauth-allow-unsecured-tokens",
        action="store_true",
        help="with OAUTHBEARER, also accept unsigned tokens, as Kafka does by default",
    )
    group.add_argument(
        "--tls-cert",
        type=Path,
        metavar="FILE.pem",
        help="the broker's certificate, with its chain (default: a temporary certificate)",
    )
    group.add_argument(
        "--tls-key",
        type=Path,
        metavar="FILE.pem",
        help="the unencrypted private key of --tls-cert (default: the key in the file of "
        "--tls-cert)",
    )
    group.add_argument(
        "--tls-client-auth",
        type=ClientAuth,
        choices=list(ClientAuth),
        help=(
            "whether clients must present a certificate (default: none, or required if "
            "--tls-client-ca is given)"
        ),
    )
    group.add_argument(
        "--tls-client-ca",
        type=Path,
        metavar="FILE.pem",
        help="the CA that signs the clients' certificates (needs --tls-cert)",
    )
    group.add_argument(
        "--write-credentials",
        type=Path,
        metavar="DIR",
        help="write files for clients to this directory. For temporary certificates: ca.pem, and "
        "client.pem with its key. For OAUTHBEARER: a token NAME.jwt per user (client.jwt without "
        "users), valid for one day",
    )
    group.add_argument(
        "--allow-cleartext-credentials",
        action="store_true",
        help="with --allow-remote: let clients send passwords over the network without TLS",
    )


def security_of(options: argparse.Namespace) -> BrokerSecurity:
    """Return the checked options, with files read."""
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
    client_auth = options.tls_client_auth
    if client_auth is None:
        client_auth = ClientAuth.REQUIRED if options.tls_client_ca else ClientAuth.NONE
    context = _context(options, client_auth)
    found = BrokerSecurity(
        tuple(
            replace(each, ssl_context=context) if each.protocol.has_tls else each
            for each in listeners
        ),
        _users(options),
        client_auth,
        options.write_credentials,
    )
    if found.out_dir is None:
        if found.has_temporary_certificates:
            raise CommandError(
                "clients cannot verify a temporary certificate without its CA: give a directory "
                "for the CA with --write-credentials, or a certificate of your own with --tls-cert"
            )
    elif not (found.has_temporary_certificates or found.has_tokens):
        raise CommandError(
            "--write-credentials has no files to write: it needs temporary certificates (--listen "
            "SSL://…) or tokens (--sasl-mechanism OAUTHBEARER)"
        )
    return found


def _check(options: argparse.Namespace, *, has_tls: bool, has_sasl: bool) -> None:
    """Reject options without an effect, because their user relies on the protection."""
    of_tls = {
        "--tls-cert": options.tls_cert,
        "--tls-key": options.tls_key,
        "--tls-client-ca": options.tls_client_ca,
        "--tls-client-auth": options.tls_client_auth,
    }
    of_sasl = {
        "--users-file": options.users_file,
        "--user": options.user,
        "--sasl-mechanism": options.sasl_mechanism,
        "--oauth-allow-unsecured-tokens": options.oauth_allow_unsecured_tokens,
    }
    for given, is_there, what in (
        (of_tls, has_tls, "SSL://… or SASL_SSL"),
        (of_sasl, has_sasl, "SASL_SSL://… or SASL_PLAINTEXT"),
    ):
        for option, value in given.items():
            if value and not is_there:
                raise CommandError(f"{option} needs a matching listener: --listen {what}://…")
    if options.tls_cert is None and (options.tls_key or options.tls_client_ca):
        raise CommandError("--tls-key and --tls-client-ca need --tls-cert")
    is_token = SaslMechanism.OAUTHBEARER in (options.sasl_mechanism or ())
    if options.oauth_allow_unsecured_tokens and not is_token:
        raise CommandError("--oauth-allow-unsecured-tokens needs --sasl-mechanism OAUTHBEARER")
    # The data may have SCRAM users of admin tools.
    if has_sasl and not (options.users_file or options.user or is_token or options.data):
        raise CommandError(
            "SASL needs at least one user: give --users-file FILE, with lines like name:password"
        )


def _context(options: argparse.Namespace, client_auth: ClientAuth) -> ssl.SSLContext | None:
    if options.tls_cert is None:
        return None
    return server_ssl_context(
        options.tls_cert,
        options.tls_key,
        client_auth=client_auth,
        client_ca_file=options.tls_client_ca,
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


def write_credentials(broker: Broker, security: BrokerSecurity) -> list[str]:
    """Write the files that clients need, and return texts about them."""
    folder = security.out_dir
    if folder is None:
        return []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        said = []
        if security.has_temporary_certificates:
            files = broker.certificates.write(folder)
            said.append(
                f"certificates: {files.ca} (the CA that clients must trust), "
                f"{files.client} (a client certificate with its key)"
            )
        if security.has_tokens:
            tokens = [_write_token(broker, folder, name) for name in security.users or ("client",)]
            said.append(f"tokens, valid for one day: {', '.join(map(str, tokens))}")
    except OSError as error:
        raise CommandError(f"cannot write to {folder}: {error.strerror}") from None
    return said


def _write_token(broker: Broker, folder: Path, name: str) -> Path:
    path = folder / f"{quote(name, safe=' @')}.jwt"
    path.touch(OWNER_ONLY)
    path.write_text(broker.oauth_token(name, lifetime_s=TOKEN_LIFETIME_S))
    return path


def endpoints_text(broker: Broker, security: BrokerSecurity) -> str:
    if [each.name for each in security.listeners] == [SecurityProtocol.PLAINTEXT]:
        return broker.bootstrap_servers
    return "; ".join(
        (f"{each.name} " if each.name == each.protocol else f"{each.name} ({each.protocol.value}) ")
        + broker.bootstrap_servers_of(each.name)
        for each in security.listeners
    )
