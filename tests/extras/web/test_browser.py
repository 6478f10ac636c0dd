"""The consumer's page as a person sees it, in a real browser."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from aiokafka_lite import AIOKafkaConsumer, TopicPartition
from aiokafka_lite.broker import Broker
from aiokafka_lite.extras import web
from aiokafka_lite.extras.web import pages
from tests.support.browser import Browser, find_browser, running_browser

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"
BROWSER = find_browser()

pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="no browser is installed (Debian: apt install chromium)"
)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure anew for every request: on a busy machine that takes long, and then rests long."""
    monkeypatch.setattr(pages, "REST_PER_WORK", 0)


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The profile of a browser that runs."""
    assert BROWSER is not None
    folder = tmp_path_factory.mktemp("profile")
    with running_browser(BROWSER, folder):
        yield folder


@pytest.fixture
async def browser(profile: Path) -> AsyncIterator[Browser]:
    """A new page of it."""
    async with Browser(profile) as page:
        yield page


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


HEADERS = "[...document.querySelectorAll('th')].map(each => each.innerText)"


async def test_on_a_phone_state_and_lag_come_first_and_all_that_names_a_row_is_in_sight(
    browser: Browser,
) -> None:
    async with Broker() as broker:
        broker.produce("orders.created.eu-west-1", "x")
        consumer = AIOKafkaConsumer(
            "orders.created.eu-west-1",
            bootstrap_servers=broker.bootstrap_servers,
            auto_offset_reset="earliest",
        )
        async with consumer, web.serve(consumer) as url:
            phone = {"height": 844, "deviceScaleFactor": 2, "mobile": True}
            await browser.call("Emulation.setDeviceMetricsOverride", width=390, **phone)
            await browser.goto(url)
            await browser.wait_for("document.querySelector('td') !== null")
            shown = await browser.evaluate(HEADERS)
            assert isinstance(shown, list)
            assert shown[:4] == ["State", "Lag", "Topic", "Partition"]
            fourth, card = "document.querySelectorAll('th')[3]", "document.querySelector('.card')"
            right = "getBoundingClientRect().right"
            assert await browser.evaluate(f"{fourth}.{right} <= {card}.{right}")
            assert await browser.evaluate("document.documentElement.scrollWidth") == 390
            # Turned round, there is room for all of them.
            await browser.call("Emulation.setDeviceMetricsOverride", width=844, **phone)
            await browser.wait_for(f"{HEADERS}[0] === 'Topic'")
            await browser.wait_for("document.querySelector('td') !== null")
            turned = await browser.evaluate(HEADERS)
            assert isinstance(turned, list)
            assert turned[:4] == ["Topic", "Partition", "State", "Lag"]
            assert browser.complaints == []
