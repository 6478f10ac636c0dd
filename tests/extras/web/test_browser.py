"""The consumer's page as a person sees it, in a real browser."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aiokafka_lite import AIOKafkaConsumer, TopicPartition
from aiokafka_lite.broker import Broker
from aiokafka_lite.extras import web
from tests.support.browser import Browser, find_browser

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"
BROWSER = find_browser()

pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="no browser is installed (Debian: apt install chromium)"
)


@pytest.fixture
async def browser(tmp_path: Path) -> AsyncIterator[Browser]:
    assert BROWSER is not None
    async with Browser(BROWSER, tmp_path / "profile") as running:
        yield running


def row(partition: int) -> str:
    """The expression for the text of a partition's row."""
    return (
        "[...document.querySelectorAll('tbody tr')]"
        f".find(line => line.children[1].innerText === '{partition}')?.innerText"
    )


async def test_page_follows_a_consumer_and_shows_names_as_text(browser: Browser) -> None:
    async with Broker(nodes=2) as broker:
        broker.create_topic("orders", 4, replication_factor=1)
        leaders = [broker.partition("orders", each).leader_id for each in range(4)]
        gone = 3
        read, paused = (each for each in range(3) if leaders[each] != leaders[gone])
        consumer = AIOKafkaConsumer(
            "orders",
            bootstrap_servers=broker.bootstrap_servers,
            group_id=HOSTILE,
            client_id=HOSTILE,
            auto_offset_reset="earliest",
        )
        async with consumer:
            async with web.serve(consumer) as url:
                consumer.pause(TopicPartition("orders", paused))
                await browser.goto(url)
                await browser.wait_for(f"{row(paused)}?.includes('paused')")
                await browser.evaluate("window.stays = 1")
                for number in range(1_234):
                    broker.produce("orders", str(number), partition=read)
                count = 0
                while count < 1_234:
                    count += sum(map(len, (await consumer.poll()).values()))
                await browser.wait_for(f"{row(read)}?.includes('1,234')")
                await browser.wait_for(
                    "document.getElementById('facts').innerText.includes('1,234')"
                )

                await broker.stop_node(leaders[gone])
                await browser.evaluate("location.hash = '#/trouble'")
                await browser.wait_for(f"{row(gone)} !== undefined")
                await browser.wait_for("document.querySelector('#view .pill.bad') !== null")
                await browser.evaluate("location.hash = '#/nodes'")
                await browser.wait_for("document.querySelector('#view .pill.good') !== null")

                shown = str(await browser.evaluate("document.querySelector('header').innerText"))
                assert shown.count(HOSTILE) == 2
                assert await browser.evaluate("document.images.length") == 1  # the icon
                assert "owned" not in str(await browser.evaluate("document.title"))
                assert await browser.evaluate("window.stays") == 1
                assert browser.complaints == []
            await browser.wait_for("document.getElementById('state').innerText === 'No answer'")
