"""A consumer of one of four clients, in a process of its own: a task as JSON in, events out.

Each event is a line of JSON on stdout: a record, an error, or a word. The parent ends the process.
"""

from __future__ import annotations

import asyncio
import base64
import importlib
import inspect
import io
import json
import logging
import os
import pickle
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

Task: TypeAlias = "dict[str, Any]"
Found: TypeAlias = "list[tuple[str, int, int, bytes | None]]"
POLL_MS = 200


def tell(**event: object) -> None:
    # getrusage() would include the parent's memory at the time of fork().
    lines = Path("/proc/self/status").read_text().splitlines()
    event["peak_mb"] = next(int(line.split()[1]) >> 10 for line in lines if "VmHWM" in line)
    print(json.dumps(event), flush=True)


def refuse_bad(value: bytes) -> bytes:
    if value == b"bad":
        raise ValueError("a bad value")
    return value


DEFAULTS = {
    "auto_offset_reset": "earliest",
    "enable_auto_commit": False,
    "request_timeout_ms": 10_000,
    "session_timeout_ms": 6_000,
    "heartbeat_interval_ms": 1_000,
}


ADDRESSES: dict[str, list[str]] = {}
"""By name, its addresses, for clients in Python."""
RESOLVE = socket.getaddrinfo


def resolve(host: Any, *arguments: Any, **named: Any) -> Any:
    if host not in ADDRESSES:
        return RESOLVE(host, *arguments, **named)
    if not ADDRESSES[host]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    return [one for each in ADDRESSES[host] for one in RESOLVE(each, *arguments, **named)]


def commands() -> Iterator[Task]:
    """Yield what the parent wants, which sends one line at a time."""
    while select.select([sys.stdin], [], [], 0)[0]:
        yield json.loads(sys.stdin.readline())


def token_provider(client: str, token: str) -> object:
    async def later(provider: object) -> str:
        return token

    module = {"kafka": "kafka.net.sasl.oauth"}.get(client, f"{client}.abc")
    base = importlib.import_module(module).AbstractTokenProvider
    method = (lambda provider: token) if client == "kafka" else later
    provider: object = type("Provider", (base,), {"token": method})()
    return provider


class Alike:
    """aiokafka's consumer, ours, or kafka-python's, which have almost the same methods."""

    def __init__(self, task: Task) -> None:
        module = importlib.import_module(task["client"])
        self._task, self._partition = task, module.TopicPartition
        self._is_asyncio = task["client"] != "kafka"
        self._listener_class = module.ConsumerRebalanceListener
        settings = {**DEFAULTS, **task["settings"]}
        if task.get("refuses_bad"):
            settings["value_deserializer"] = refuse_bad
        if task["client"] == "aiokafka_lite":
            settings.setdefault("group_protocol", "classic")
        if "token" in task:
            token = task["token"] * task["token_times"]
            settings["sasl_oauth_token_provider"] = token_provider(task["client"], token)
        cafile = settings.pop("cafile", None)
        if not self._is_asyncio:
            settings.update(ssl_cafile=cafile, bootstrap_timeout_ms=10_000)
        elif cafile:
            helpers = importlib.import_module(f"{task['client']}.helpers")
            settings["ssl_context"] = helpers.create_ssl_context(cafile=cafile)
        make = module.AIOKafkaConsumer if self._is_asyncio else module.KafkaConsumer
        self._consumer = make(bootstrap_servers=task["servers"], group_id=task["group"], **settings)

    async def open(self) -> None:
        topics: dict[str, int] = self._task["topics"]
        if self._task["group"]:
            self._consumer.subscribe(list(topics), listener=self._listener())
        if self._is_asyncio:
            await self._consumer.start()
        if not self._task["group"]:
            counts = topics.items()
            self._consumer.assign(
                [self._partition(t, n) for t, count in counts for n in range(count)]
            )

    def _listener(self) -> object | None:
        def refuse(listener: object, partitions: object) -> None:
            raise ValueError("the listener's error")

        async def refuse_later(listener: object, partitions: object) -> None:
            refuse(listener, partitions)

        async def take(listener: object, partitions: object) -> None:
            pass

        if not self._task.get("listener_raises"):
            return None
        methods: dict[str, object] = {"on_partitions_assigned": refuse_later}
        methods["on_partitions_revoked"] = take
        if not self._is_asyncio:
            methods = {"on_partitions_assigned": refuse}
            methods["on_partitions_revoked"] = lambda listener, partitions: None
        listener: object = type("Raising", (self._listener_class,), methods)()
        return listener

    async def poll(self) -> Found:
        if limit_s := self._task.get("cancelled_after_s"):
            try:
                record = await asyncio.wait_for(self._consumer.getone(), limit_s)
            except asyncio.TimeoutError:
                return []
            return [(record.topic, record.partition, record.offset, record.value)]
        read = self._consumer.getmany if self._is_asyncio else self._consumer.poll
        found = await ended(read(timeout_ms=POLL_MS, max_records=self._task.get("most")))
        return [(r.topic, r.partition, r.offset, r.value) for some in found.values() for r in some]

    async def commit(self) -> None:
        await ended(self._consumer.commit())

    def obey(self, verb: str, topic: str, partition: int, *arguments: int) -> None:
        getattr(self._consumer, verb)(self._partition(topic, partition), *arguments)

    async def close(self) -> None:
        await ended(self._consumer.stop() if self._is_asyncio else self._consumer.close())

    async def work(self, duration_s: float) -> None:
        if self._is_asyncio:
            await asyncio.sleep(duration_s)
        else:
            time.sleep(duration_s)  # noqa: ASYNC251 — its own thread goes on


async def ended(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


def refuse(consumer: object, partitions: object) -> None:
    raise ValueError("the listener's error")


class Confluent:
    """confluent-kafka's consumer."""

    def __init__(self, task: Task) -> None:
        import confluent_kafka

        self._task, self._module = task, confluent_kafka
        named = {
            "isolation_level": "isolation.level",
            "fetch_max_bytes": "fetch.max.bytes",
            "max_partition_fetch_bytes": "max.partition.fetch.bytes",
            "security_protocol": "security.protocol",
            "sasl_mechanism": "sasl.mechanism",
            "sasl_plain_username": "sasl.username",
            "sasl_plain_password": "sasl.password",
            "cafile": "ssl.ca.location",
            "enable_auto_commit": "enable.auto.commit",
            "auto_commit_interval_ms": "auto.commit.interval.ms",
            "max_poll_interval_ms": "max.poll.interval.ms",
            "group_instance_id": "group.instance.id",
            "group_protocol": "group.protocol",
            "client_rack": "client.rack",
            "metadata_max_age_ms": "topic.metadata.refresh.interval.ms",
            "auto_offset_reset": "auto.offset.reset",
            "client_id": "client.id",
        }
        given = {named.get(name, name): value for name, value in task["settings"].items()}
        if given.get("auto.offset.reset") == "none":
            given["auto.offset.reset"] = "error"
        if "fetch.max.bytes" in given:
            given["message.max.bytes"] = given["fetch.max.bytes"]
        settings = {
            "bootstrap.servers": task["servers"],
            "group.id": task["group"] or "none",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "socket.timeout.ms": 10_000,
            "session.timeout.ms": 6_000,
            "heartbeat.interval.ms": 1_000,
            "error_cb": lambda error: tell(note=error.name()),
            "log_level": 0,
            **given,
            **task.get("librdkafka", {}),
        }
        if "token" in task:
            token = task["token"] * task["token_times"]
            settings["oauth_cb"] = lambda _: (token, time.time() + task["lifetime_s"])
        if "secrets" in task:
            settings.update(debug="all", log_level=7, logger=logging.getLogger())
        if settings.get("group.protocol") == "consumer":
            del settings["session.timeout.ms"], settings["heartbeat.interval.ms"]
        self._consumer = confluent_kafka.Consumer(settings)

    async def open(self) -> None:
        topics: dict[str, int] = self._task["topics"]
        if self._task.get("mock"):
            (broker,) = self._consumer.list_topics(timeout=5).brokers.values()
            tell(word="mock", host=broker.host, port=broker.port)
        if self._task["group"]:
            callbacks = {"on_assign": refuse} if self._task.get("listener_raises") else {}
            self._consumer.subscribe(list(topics), **callbacks)
            return
        partition, begin = self._module.TopicPartition, self._module.OFFSET_BEGINNING
        self._consumer.assign(
            [partition(topic, n, begin) for topic, count in topics.items() for n in range(count)]
        )

    async def poll(self) -> Found:
        found = []
        messages: list[Any] = self._consumer.consume(self._task.get("most", 100), POLL_MS / 1_000)
        for message in messages:
            if message.error() is not None:
                tell(error=message.error().name())
            else:
                place = message.topic(), message.partition(), message.offset()
                found.append((*place, message.value()))
        return found

    async def commit(self) -> None:
        self._consumer.commit(asynchronous=False)

    def obey(self, verb: str, topic: str, partition: int, *arguments: int) -> None:
        where: Any = self._module.TopicPartition(topic, partition)
        where.offset = arguments[0] if arguments else where.offset
        getattr(self._consumer, verb)(where if verb == "seek" else [where])

    async def close(self) -> None:
        self._consumer.close()

    async def work(self, duration_s: float) -> None:
        time.sleep(duration_s)  # noqa: ASYNC251 — its own threads go on


def watch_secrets(secrets: Sequence[str]) -> object:
    """Return a function that names where these texts are: in logs, or in what it is given."""
    log = io.StringIO()
    logging.basicConfig(level=logging.DEBUG, stream=log)
    forms = [form for each in secrets for form in (each, base64.b64encode(each.encode()).decode())]

    def found(**texts: str) -> list[str]:
        texts["log"] = log.getvalue()
        return sorted(name for name, text in texts.items() if any(each in text for each in forms))

    return found


def pickled(client: object) -> str:
    try:
        return pickle.dumps(client).decode("latin-1")
    except Exception as error:  # noqa: BLE001 — it refuses
        return repr(error)


def watch_code(names: Sequence[str]) -> None:
    """Tell of each import, open file or unpickled object with one of these names."""

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event in ("import", "open", "exec", "pickle.find_class", "subprocess.Popen"):
            text = repr(arguments)
            if any(name in text for name in names):
                tell(word="runs", event=event, text=text[:200])

    sys.addaudithook(hook)


async def read(task: Task) -> None:
    """Read until the parent ends this process; `task` says what to do on the way."""
    tell(word="imported")
    ADDRESSES.update(task.get("addresses", {}))
    socket.getaddrinfo = resolve
    leaks: Any = watch_secrets(task["secrets"]) if "secrets" in task else None
    watch_code(task.get("forbidden", ()))
    last = ""
    client: Any = None
    errors = seen = 0
    is_open = False
    while errors < (1 if task.get("gives_up") else 20):
        try:
            for command in commands() if task.get("obeys") else ():
                ADDRESSES.update(command.get("addresses", {}))
                if "verb" in command:
                    client.obey(command["verb"], *command["arguments"])
                shown = {}
                if leaks is not None:
                    kept = getattr(client, "_consumer", None)
                    shown["where"] = leaks(repr=repr(kept), pickle=pickled(kept), error=last)
                tell(word=command["word"], **shown)
            client = client or (Confluent if task["client"] == "confluent_kafka" else Alike)(task)
            if not is_open:
                await client.open()
                is_open = True
                tell(word="open")
            found = await client.poll()
            for topic, partition, offset, value in found:
                text = None if value is None else value[:20].decode("latin-1")
                tell(record=[f"{topic}/{partition}", offset, text])
            seen += len(found)
            if found and (work_s := task.pop("works_s", 0)):
                tell(word="working")
                await client.work(work_s)
            if found and (block_s := task.get("blocks_s")) and seen >= 10:
                task["blocks_s"] = 0
                tell(word="blocked")
                time.sleep(block_s)  # noqa: ASYNC251 — that is the fault
            if found and task.pop("cancels_tasks", False):
                for each in asyncio.all_tasks() - {asyncio.current_task()}:
                    each.cancel()
                tell(word="cancelled")
            if found and task.get("forks"):
                task["forks"] = 0
                if (child := os.fork()) == 0:
                    signal.alarm(10)  # which ends it
                    try:
                        tell(child=len(asyncio.run(client.poll())))
                    except BaseException as error:  # noqa: BLE001 — told to the parent
                        tell(child=type(error).__name__)
                    os._exit(0)
                if os.waitpid(child, 0)[1]:  # noqa: ASYNC222
                    tell(child="hangs")
            if found and task.get("commits"):
                await client.commit()
                tell(word="committed")
            if seen >= task.get("leaves_after", 1 << 30):
                tell(word="leaving")
                return
            if seen >= task.get("stops_after", 1 << 30):
                tell(word="stopping")
                sys.stdin.readline()
                began = time.monotonic()
                await client.close()
                tell(word="stopped", seconds=time.monotonic() - began)
                return
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 — told to the parent
            name = type(error).__name__
            kafka_error: Any = error.args[0] if error.args else None
            if hasattr(kafka_error, "name"):  # KafkaException(KafkaError)
                name = kafka_error.name()
            last += repr(error)
            tell(error=name, text=str(error)[:200])
            errors += 1
            await asyncio.sleep(0.2)
    await asyncio.sleep(3_600)  # until the parent ends this process


def main(arguments: Sequence[str]) -> None:
    asyncio.run(read(json.loads(arguments[0])))


if __name__ == "__main__":
    main(sys.argv[1:])
