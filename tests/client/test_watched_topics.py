"""Which topics metadata have to cover, and which they do not cover yet."""

from __future__ import annotations

from aiokafka_lite.client.watched_topics import WatchedTopics


def test_topics_are_covered_when_they_were_asked_for() -> None:
    watched = WatchedTopics()
    assert (watched.topics, watched.missing, watched.are_covered) == (set(), set(), True)
    watched.set("one", ["a", "b"])
    assert (watched.topics, watched.missing, watched.are_covered) == ({"a", "b"}, {"a", "b"}, False)
    watched.were_asked(["a"])
    assert watched.missing == {"b"}
    watched.were_added(["b"])
    assert (watched.missing, watched.are_covered) == (set(), True)
    watched.add("two", "a")
    assert watched.are_covered
    watched.add("two", "c")
    assert (watched.topics, watched.missing, watched.are_covered) == ({"a", "b", "c"}, {"c"}, False)
    watched.were_added(["c"])
    watched.set("two", ["c"])
    assert watched.are_covered  # it is asked for already


def test_a_topic_is_wanted_until_the_last_owner_does_not() -> None:
    watched = WatchedTopics()
    watched.set("one", ["a"])
    watched.add("two", "a")
    watched.add("two", "b")
    watched.remove("nobody", "a")
    watched.remove("two", "a")
    assert (watched.topics, watched.missing) == ({"a", "b"}, {"a", "b"})
    watched.remove("two", "b")
    assert (watched.topics, watched.missing) == ({"a"}, {"a"})
    watched.add("two", "c")
    watched.set("one", ())
    assert (watched.topics, watched.missing) == ({"c"}, {"c"})


def test_every_topic_may_be_wanted_or_asked_for() -> None:
    watched = WatchedTopics()
    watched.set("one", ["a"])
    watched.were_asked(["a"])
    watched.set("all", None)
    assert (watched.topics, watched.missing, watched.are_covered) == (None, set(), False)
    watched.add("two", "b")
    watched.add("all", "c")
    watched.remove("all", "c")
    watched.remove("two", "b")
    assert watched.topics is None
    watched.were_asked(None)
    assert watched.are_covered
    watched.set("all", ())
    watched.add("two", "d")
    watched.were_added(["d"])
    assert (watched.topics, watched.missing, watched.are_covered) == ({"a", "d"}, set(), True)
    watched.were_asked(["d"])
    assert (watched.missing, watched.are_covered) == ({"a"}, False)
