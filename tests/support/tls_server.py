"""A TLS server on a thread, which says why it refuses a handshake.

asyncio's servers, and so the embedded broker, hang up without the alert that OpenSSL has ready for
the client; Kafka sends it.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from types import TracebackType

from aiokafka_lite._compat import Self


class TlsServer:
    """Shakes hands with whoever comes, and reads until they go. Use it in a `with`.

    Attributes:
        address: Where it listens.
        accepted: How many connections came.
        received: What came through TLS.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, name="TLS server")
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.accepted = 0
        self.received = b""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            with connection:
                connection.settimeout(10)
                self._shake_hands(connection)

    def _shake_hands(self, connection: socket.socket) -> None:
        secured = self._context.wrap_socket(
            connection, server_side=True, do_handshake_on_connect=False
        )
        try:
            secured.do_handshake()
            while chunk := secured.recv(65_536):
                self.received += chunk
        except OSError:
            # Wait for the client to close: with bytes unread, the reset would take the alert along.
            with socket.socket(fileno=secured.detach()) as refused:
                refused.settimeout(10)
                with contextlib.suppress(OSError):
                    while refused.recv(65_536):
                        pass
        finally:
            secured.close()
