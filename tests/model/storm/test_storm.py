"""A short storm by each protocol: nothing is lost, nothing is two members', and it calms down."""

from __future__ import annotations

import pytest

from tests.model.storm.cluster import three_nodes
from tests.model.storm.course import PROTOCOLS, run_storm
from tests.support.real_kafka import KafkaUnavailableError
from tests.support.required import unavailable

REBALANCES = 60
pytestmark = [pytest.mark.real_kafka, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_storm_loses_nothing_has_no_two_owners_and_calms_down(protocol: str) -> None:
    try:
        nodes = three_nodes()
    except KafkaUnavailableError as error:
        unavailable(error)
    with nodes as kafka:
        report, ledger = run_storm(kafka, protocol, rebalances=REBALANCES)
    assert report.rebalances >= REBALANCES
    assert report.crashes + report.cuts > 0
    assert not ledger.violations, "\n".join([*map(str, ledger.violations[:20]), str(report)])
