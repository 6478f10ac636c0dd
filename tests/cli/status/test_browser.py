"""The status page as a person sees it, in a real browser."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiokafka
import pytest

pytest.importorskip("aiohttp", reason="the status page needs aiohttp")

from aiokafka_lite.broker import Broker
from aiokafka_lite.cli.status import serve
from tests.support.browser import Browser, find_browser, running_browser

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"
BROWSER = find_browser()

pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="no browser is installed (Debian: apt install chromium)"
)


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


def row(text: str) -> str:
    """The expression for the text of the row that begins with this."""
    return (
        "[...document.querySelectorAll('tbody tr')].map(line => line.innerText)"
        f".find(line => line.startsWith({text!r}))"
    )


async def test_page_follows_the_broker_without_reloading(browser: Browser) -> None:
    async with Broker(nodes=2) as broker, serve(broker) as url:
        broker.create_topic("orders", 3)
        await browser.goto(url)
        await browser.wait_for(row("orders"))
        await browser.evaluate("window.stays = 1")
        assert await browser.evaluate("document.querySelector('h2').innerText") == "Topics"
        assert broker.bootstrap_servers == await browser.evaluate(
            "document.getElementById('bootstrap').innerText"
        )
        for number in range(1_234):
            broker.produce("orders", str(number))
        await browser.wait_for(f"{row('orders')}.includes('1,234')")
        await broker.stop_node(2)
        await browser.evaluate("location.hash = '#/nodes'")
        await browser.wait_for(f"{row('2')}?.includes('stopped')")
        assert await browser.evaluate("window.stays") == 1
        assert browser.complaints == []


async def test_names_of_strangers_are_text(browser: Browser) -> None:
    async with (
        Broker() as broker,
        serve(broker) as url,
        aiokafka.AIOKafkaConsumer(
            "t", bootstrap_servers=broker.bootstrap_servers, group_id=HOSTILE, client_id=HOSTILE
        ),
    ):
        await browser.goto(f"{url}#/groups")
        await browser.wait_for(row(HOSTILE))
        await browser.evaluate("document.querySelector('tbody a').click()")
        await browser.wait_for("document.querySelector('main').innerText.includes('Members')")
        await browser.wait_for(row(HOSTILE))  # the member's id begins with the client's
        for view in ("connections", "requests"):
            await browser.evaluate(f"location.hash = '#/{view}'")
            await browser.wait_for(
                f"document.querySelector('tbody')?.innerText.includes({HOSTILE!r})"
            )
        assert await browser.evaluate("document.querySelectorAll('main img').length") == 0
        assert "owned" not in str(await browser.evaluate("document.title"))
        assert browser.complaints == []


async def test_keyboard_alone_reaches_a_topic_and_sorts(browser: Browser) -> None:
    async with Broker() as broker, serve(broker) as url:
        for name, partitions in (("b", 1), ("a", 10), ("c", 9)):
            broker.create_topic(name, partitions)
        await browser.goto(url)
        await browser.wait_for(row("c"))
        names = "[...document.querySelectorAll('tbody a')].map(link => link.innerText).join()"
        assert await browser.evaluate(names) == "a,b,c"

        await _tab_to(browser, "Partitions")
        await browser.press("Enter")
        assert await browser.evaluate(names) == "b,c,a"
        await browser.press("Enter")
        assert await browser.evaluate(names) == "a,c,b"
        sorting = "document.activeElement.closest('th').getAttribute('aria-sort')"
        assert await browser.evaluate(sorting) == "descending"

        await _tab_to(browser, "c")
        await browser.press("Enter")
        await browser.wait_for("document.querySelector('h2').innerText === 'c'")
        await browser.wait_for("document.querySelectorAll('tbody tr').length === 9")
        current = "document.querySelector('nav [aria-current=page]').innerText"
        assert str(await browser.evaluate(current)).startswith("Topics")


async def _tab_to(browser: Browser, text: str) -> None:
    for _ in range(40):
        await browser.press("Tab")
        if await browser.evaluate("document.activeElement.innerText") == text:
            return
    raise AssertionError(f"no Tab leads to {text!r}")


async def test_find_and_pages_keep_to_what_was_asked(browser: Browser) -> None:
    async with Broker() as broker, serve(broker) as url:
        for number in range(205):
            broker.create_topic(f"topic-{number:03}")
        await browser.goto(url)
        await browser.wait_for(
            "document.querySelector('.pager')?.innerText.includes('1–200 of 205')"
        )
        # Of a part nobody knows what comes first.
        assert await browser.evaluate("document.querySelectorAll('th button').length") == 0
        await browser.evaluate("document.querySelector('.pager button:last-child').click()")
        await browser.wait_for(row("topic-204"))
        await browser.evaluate(
            "(input => { input.value = '10'; input.dispatchEvent(new Event('input')) })"
            "(document.querySelector('input'))"
        )
        found = "[...document.querySelectorAll('tbody a')].map(link => link.innerText).join()"
        expected = ",".join(f"topic-{n:03}" for n in range(205) if "10" in f"{n:03}")
        await browser.wait_for(f"{found} === {expected!r}")


async def test_page_says_when_the_broker_is_gone_and_when_it_failed(browser: Browser) -> None:
    async with Broker() as broker:
        async with serve(broker) as url:
            await browser.goto(url)
            await browser.wait_for("document.getElementById('state').innerText === 'Live'")
            broker.failure = ZeroDivisionError("a bug")
            await browser.wait_for("document.getElementById('alarm').innerText.includes('a bug')")
        await browser.wait_for("document.getElementById('state').innerText === 'No answer'")
        broker.failure = None
        await asyncio.sleep(0)
