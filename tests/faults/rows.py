"""The faults of docs/reliability.md: what happens here, and the tests that show it.

`python -m tests.faults.page` writes the page.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class Row(NamedTuple):
    """A fault.

    Attributes:
        name: Its name, for example CN-1.
        fault, here: The fault, and how this client behaves.
        tests: Tests that show it, as "file::test".
        otherwise: By peer, why it has no outcome.
    """

    name: str
    fault: str
    here: str
    tests: tuple[str, ...]
    otherwise: Mapping[str, str] = {}


def has_none(what: str, *peers: str) -> Mapping[str, str]:
    return dict.fromkeys(peers or PEERS, f"has no {what}")


PEERS: Final = ("aiokafka", "confluent-kafka", "kafka-python")
GROUP: Final = "consumer/group/"

SECTIONS: Final[dict[str, tuple[Row, ...]]] = {
    "Connections": (
        Row(
            "CN-1",
            "Broker killed during a fetch",
            "Continues after the election",
            (
                "chaos/test_real.py::"
                "test_each_of_three_brokers_is_killed_once_and_no_record_is_lost_or_repeated",
            ),
        ),
        Row(
            "CN-2",
            "Half-open connection, hanging broker",
            "Reconnects, keeps its membership",
            (
                "consumer/test_network.py::test_a_half_open_connection_is_found_and_left",
                "chaos/test_real.py::test_a_broker_that_hangs_is_left_and_the_membership_kept",
            ),
        ),
        Row(
            "CN-3",
            "Response in single bytes, or stalled",
            "Same records, a stalled request times out",
            (
                "consumer/test_network.py::test_answers_split_at_every_byte_are_the_same_records",
                "client/test_connection.py::test_frame_that_stalls_half_way_is_caught_by_the_deadline",
            ),
        ),
        Row(
            "CN-4",
            "Impossible frame size, or another protocol",
            "Error names address and protocol",
            (
                "client/test_frames.py::"
                "test_frame_beyond_the_limit_is_refused_before_memory_is_taken",
                "client/test_frames.py::test_known_strangers_are_named",
            ),
        ),
        Row(
            "CN-5",
            "Wrong or late correlation id",
            "Closes the connection, drops late responses",
            (
                "client/test_connection.py::test_unknown_correlation_id_poisons",
                "client/test_wire.py::test_a_late_answer_is_dropped_and_not_taken_for_another",
            ),
        ),
        Row(
            "CN-6",
            "Each connection dies after a second",
            "Every record once, few reconnects",
            ("consumer/test_network.py::test_a_flapping_broker_is_not_hammered",),
        ),
        Row(
            "CN-7",
            "Reset during TLS, SASL or sending",
            "`start()` raises, later it retries",
            (
                "client/test_tls.py::test_reset_during_the_handshake_may_be_tried_again",
                "consumer/test_network.py::test_a_reset_while_the_client_signs_on_is_tried_again",
                "client/test_connection.py::test_request_fails_when_the_peer_takes_nothing_in_time",
            ),
        ),
        Row(
            "CN-8",
            "DNS: dead address first, changed, unknown name",
            "Tries every address, resolves again",
            (
                "client/test_open.py::test_every_address_of_a_name_is_tried",
                "client/test_open.py::test_name_is_resolved_again_for_each_connection",
                "client/test_open.py::test_unknown_name_is_retriable_and_says_what_to_check",
            ),
            dict.fromkeys(["confluent-kafka"], "resolves names in C"),
        ),
        Row(
            "CN-9",
            "Brokers move or are all replaced",
            "Follows metadata, then bootstraps again",
            (
                "client/test_pool.py::"
                "test_node_that_moved_is_followed_and_the_old_connection_drained",
                "consumer/test_network.py::"
                "test_brokers_that_were_all_replaced_are_found_by_their_old_name",
            ),
        ),
        Row(
            "CN-10",
            "ApiVersions: refused, empty range, 100,000 keys",
            "Falls back once, then an error",
            (
                "client/test_open.py::test_endless_refusal_ends_after_a_few_tries",
                "client/test_open.py::test_empty_version_range_is_a_protocol_error",
                "client/test_open.py::test_hundred_thousand_apis_are_too_many",
            ),
        ),
    ),
    "Cluster": (
        Row(
            "CL-1",
            "Leader moves, metadata is stale",
            "Follows the newest leader epoch",
            (
                "consumer/test_sources.py::test_a_leader_hint_is_followed_at_once",
                "consumer/test_faults.py::test_stale_metadata_is_overcome",
            ),
        ),
        Row(
            "CL-2",
            "Controller killed",
            "No effect",
            ("chaos/test_real.py::test_a_controller_that_is_no_broker_dies_unnoticed",),
        ),
        Row(
            "CL-3",
            "Topic deleted while it is read",
            "One error, other topics continue",
            (
                "consumer/test_topic_lives.py::test_a_deleted_topic_is_told_and_the_others_go_on",
                "consumer/test_topic_lives.py::test_a_deleted_topic_is_not_asked_for_in_a_hot_loop",
            ),
        ),
        Row(
            "CL-4",
            "Topic recreated under the same name",
            "Resets its positions",
            (
                "consumer/test_topic_lives.py::test_a_position_is_not_applied_to_another_log",
                "consumer/test_topic_lives.py::test_what_was_committed_of_the_old_log_is_not_used",
            ),
        ),
        Row(
            "CL-5",
            "Partitions or matching topics added",
            "Reads them from their first record",
            (
                "consumer/test_topic_lives.py::"
                "test_nothing_written_to_new_partitions_is_lost_with_latest",
                "consumer/test_topic_lives.py::"
                "test_a_pattern_gains_and_loses_topics_and_loses_no_record",
            ),
        ),
        Row(
            "CL-6",
            "Log truncated by an unclean election",
            "Continues at the divergence, or raises",
            (
                "consumer/test_truncation.py::test_reading_goes_on_where_the_logs_part",
                "consumer/test_truncation.py::test_without_a_policy_the_application_decides",
                "consumer/test_truncation.py::test_epoch_that_the_leader_does_not_know_is_no_alarm",
            ),
        ),
        Row(
            "CL-7",
            "Follower behind, dead or out of range",
            "Asks the leader, without a reset",
            (
                "consumer/test_replicas.py::"
                "test_a_follower_s_out_of_range_neither_resets_nor_raises",
                "consumer/test_replicas.py::"
                "test_a_lost_follower_s_partitions_go_to_their_leader_at_once",
            ),
        ),
        Row(
            "CL-8",
            "Fetch session lost, partition named twice",
            "New session, every record once",
            (
                "consumer/test_fetch_session.py::"
                "test_a_session_out_of_step_is_replaced_without_loss",
                "consumer/test_sources.py::test_a_partition_named_twice_is_buffered_once",
            ),
            has_none("fetch sessions", "aiokafka", "confluent-kafka"),
        ),
        Row(
            "CL-9",
            "Quota exceeded",
            "Waits, but heartbeats continue",
            (
                "client/test_pool.py::test_throttle_mutes_fetching_not_heartbeats",
                "client/test_connection.py::test_throttle_is_noted_and_capped",
            ),
        ),
        Row(
            "CL-10",
            "Records deleted before they are read",
            "Resets, reports the gap",
            (
                "consumer/test_topic_lives.py::test_records_deleted_under_the_reader_are_told_exactly",
            ),
        ),
    ),
    "Groups": (
        Row(
            "GR-1",
            "Coordinator moves, loads or fails",
            "Finds it, retries each request",
            (
                f"{GROUP}test_error_table.py::"
                "test_an_error_of_the_coordinator_has_its_outcome_and_no_other",
                "consumer/test_watchdog.py::"
                "test_the_resolver_is_woken_when_a_position_is_missing_for_long",
            ),
        ),
        Row(
            "GR-2",
            "Coordinator killed",
            "Same member id, without a rebalance",
            ("chaos/test_simulated.py::test_brokers_fail_in_turn_and_the_group_stays_as_it_is",),
        ),
        Row(
            "GR-3",
            "Members join and leave every second",
            "No loss, a stable end",
            (f"{GROUP}test_storms.py::test_a_storm_of_rebalances_loses_nothing_and_calms_down",),
        ),
        Row(
            "GR-4",
            "Member killed",
            "Others continue at its commits",
            (
                f"{GROUP}test_membership.py::"
                "test_the_partitions_of_a_dead_member_go_to_the_others_on_kafka",
            ),
        ),
        Row(
            "GR-5",
            "Event loop blocked beyond the session",
            "Loses its partitions, except with `heartbeat_thread=True`",
            (
                f"{GROUP}test_blocked_loop.py::"
                "test_a_block_of_a_session_timeout_costs_the_membership",
                f"{GROUP}test_blocked_loop.py::"
                "test_what_is_buffered_of_lost_partitions_is_not_handed_out_after_a_block",
                f"{GROUP}test_heartbeat_thread.py::test_a_block_of_several_sessions_costs_nothing",
            ),
        ),
        Row(
            "GR-6",
            "Interval between reads too long",
            "Leaves, joins again with the next read",
            (
                f"{GROUP}test_membership_faults.py::"
                "test_a_member_without_gets_leaves_and_comes_back_at_the_next_get",
                f"{GROUP}test_commit_faults.py::"
                "test_a_commit_after_too_long_a_pause_says_how_long_and_at_which_record",
            ),
        ),
        Row(
            "GR-7",
            "Static member restarted, or its id used twice",
            "No rebalance, or one member is fenced",
            (
                f"{GROUP}test_static.py::"
                "test_three_members_are_restarted_in_turn_and_nobody_else_moves",
                f"{GROUP}test_membership.py::test_the_older_of_two_with_one_instance_id_is_fenced",
                f"{GROUP}test_kip848_traps.py::"
                "test_trap_19_an_instance_id_that_is_not_released_in_a_session_is_an_error",
            ),
        ),
        Row(
            "GR-8",
            "Generation or member unknown, also late",
            "Joins again, ignores late errors",
            (
                f"{GROUP}test_member.py::test_news_of_an_older_generation_is_ignored",
                f"{GROUP}test_membership_faults.py::"
                "test_a_lost_generation_keeps_the_id_and_a_lost_membership_drops_it",
            ),
        ),
        Row(
            "GR-9",
            "Commit during a rebalance, or its response lost",
            "Committed later, or an error",
            (
                f"{GROUP}test_commits.py::"
                "test_a_commit_that_meets_a_rebalance_is_made_in_the_next_generation",
                f"{GROUP}test_commits.py::test_a_commit_tried_again_does_not_undo_a_later_one",
            ),
        ),
        Row(
            "GR-10",
            "KIP-848: member fenced or stale",
            "Keeps its member id, retries commits",
            (
                f"{GROUP}test_kip848_traps.py::test_trap_07_an_epoch_error_keeps_the_member_id",
                f"{GROUP}test_kip848_traps.py::"
                "test_trap_11_a_stale_epoch_is_committed_under_the_next_and_never_surfaces",
                f"{GROUP}test_kip848_traps.py::"
                "test_trap_17_an_epoch_that_makes_no_sense_is_not_believed",
            ),
            has_none("KIP-848", "aiokafka", "kafka-python"),
        ),
        Row(
            "GR-11",
            "Committed offsets unstable or omitted",
            "Waits, and does not reset",
            (
                f"{GROUP}test_unstable_offsets.py::"
                "test_a_member_waits_for_committed_offsets_however_often_it_has_to_ask",
                f"{GROUP}test_commits.py::test_a_partition_left_out_is_asked_for_again",
            ),
        ),
        Row(
            "GR-12",
            "Another member's subscription is unreadable",
            "It gets no partitions",
            (
                f"{GROUP}test_hostile_peers.py::"
                "test_a_peer_whose_subscription_is_unreadable_gets_nothing",
                f"{GROUP}test_hostile_peers.py::"
                "test_what_a_peer_claims_to_have_is_believed_within_reason",
            ),
        ),
    ),
    "Records": (
        Row(
            "FE-1",
            "Wrong checksum, once or always",
            "Fetches again, then raises",
            (
                "records/test_record_set.py::test_batches_ahead_of_a_wrong_checksum_are_delivered",
                "consumer/test_faults.py::test_a_corrupt_batch_is_an_error_once_it_stays_so",
            ),
        ),
        Row(
            "FE-2",
            "First or last batch cut",
            "Last one ignored, first one an error",
            (
                "records/test_record_set.py::test_last_batch_may_be_cut_at_every_byte",
                "consumer/test_hostile_fetches.py::"
                "test_a_partition_that_cannot_be_read_is_not_asked_for_in_a_hot_loop",
            ),
        ),
        Row(
            "FE-3",
            "Record larger than fetch limits",
            "Delivered, or an error names the size",
            (
                "consumer/test_hostile_fetches.py::test_a_batch_larger_than_a_fetch_comes_whole",
                "consumer/test_oversized.py::"
                "test_the_partition_is_found_and_its_error_names_the_size_needed",
            ),
        ),
        Row(
            "FE-4",
            "Control batches: unknown, empty, two markers",
            "Skipped",
            (
                "records/test_record_set.py::test_control_records_are_never_delivered",
                "records/test_record_set.py::"
                "test_the_first_marker_of_a_control_batch_counts_and_it_may_be_compressed",
            ),
        ),
        Row(
            "FE-5",
            "Aborted and open transactions between others",
            "The committed records",
            (
                "records/test_record_set.py::"
                "test_reader_of_committed_records_sees_exactly_the_committed_ones",
                "consumer/test_transactions.py::"
                "test_read_committed_gives_exactly_what_was_committed",
            ),
        ),
        Row(
            "FE-6",
            "Gaps left by compaction",
            "Skipped",
            (
                "records/test_record_set.py::test_position_passes_a_batch_that_compaction_emptied",
                "consumer/test_topic_lives.py::test_holes_that_compaction_leaves_are_passed_over",
            ),
        ),
        Row(
            "FE-7",
            "Old and unknown record formats",
            "Old ones read, unknown ones an error",
            (
                "records/test_kafka_batches.py::test_batches_of_different_ages_follow_each_other",
                "records/test_record_set.py::test_batch_of_an_unknown_format_is_refused",
            ),
        ),
        Row(
            "FE-8",
            "Unknown compression codec",
            "An error at its offset",
            ("records/test_record_set.py::test_batch_of_an_unknown_codec_is_refused",),
        ),
        Row(
            "FE-9",
            "Wrong record count or lengths",
            "An error before allocation",
            (
                "records/test_hostile_batches.py::"
                "test_impossible_count_is_refused_before_anything_is_allocated",
                "records/test_hostile_batches.py::"
                "test_records_beyond_the_declared_count_are_corruption",
            ),
        ),
        Row(
            "FE-10",
            "Offsets go backwards, batches overlap",
            "Each offset once, or an error",
            (
                "records/test_record_set.py::test_overlapping_batches_give_each_offset_once",
                "records/test_hostile_batches.py::"
                "test_malformed_record_is_corruption_behind_the_good_one",
            ),
        ),
        Row(
            "FE-11",
            "Decompression bombs",
            "An error, memory stays below the limit",
            (
                "records/test_hostile_batches.py::test_bomb_costs_its_cap_and_not_its_claim",
                "consumer/test_hostile_fetches.py::"
                "test_bombs_beyond_the_cap_are_errors_one_a_get_and_cost_no_more_than_it",
            ),
        ),
        Row(
            "FE-12",
            "Broken or several compressed streams",
            "An error, several are read",
            (
                "records/test_hostile_batches.py::test_stream_cut_at_every_byte_is_corruption",
                "records/test_hostile_batches.py::test_stream_of_several_frames_is_read_whole",
            ),
        ),
        Row(
            "FE-13",
            "Impossible lengths in responses",
            "An error before allocation",
            (
                "protocol/test_hostile_bytes.py::test_a_false_count_costs_nothing",
                "protocol/test_hostile_bytes.py::"
                "test_empty_arrays_cost_no_more_than_their_bytes_can_hold",
            ),
        ),
        Row(
            "FE-14",
            "Offset out of range, late reset response",
            "Resets by policy, ignores the late one",
            (
                "consumer/test_sources.py::test_out_of_range_is_reset_by_policy",
                "consumer/test_sources.py::test_out_of_range_without_policy_is_raised_until_sought",
                "consumer/test_hung_broker.py::test_an_answer_that_comes_after_a_seek_moves_nothing",
            ),
        ),
        Row(
            "FE-15",
            "Response after a seek, pause or revocation",
            "Old records dropped, paused ones kept",
            (
                "consumer/test_buffer.py::test_seek_drops_what_is_buffered",
                "consumer/test_sources.py::test_an_answer_that_comes_too_late_is_dropped",
                "consumer/test_sources.py::test_an_answer_to_a_paused_partition_is_kept_for_later",
            ),
        ),
        Row(
            "FE-16",
            "Error for a whole fetch, unknown error code",
            "Retries with pauses, raises unknown codes",
            (
                "consumer/test_sources.py::"
                "test_a_broker_that_fails_at_the_top_is_not_asked_in_a_hot_loop",
                "consumer/test_hostile_fetches.py::"
                "test_an_error_code_that_nobody_knows_is_asked_again_with_pauses",
            ),
        ),
    ),
    "Application": (
        Row(
            "AP-1",
            "Call cancelled at any await",
            "No record lost or repeated",
            (
                "consumer/test_cancellation.py::test_a_get_cancelled_at_any_await_loses_no_record",
                "consumer/test_stop.py::"
                "test_a_start_cancelled_at_any_await_leaves_nothing_and_may_be_tried_again",
            ),
            has_none("coroutines", "confluent-kafka", "kafka-python"),
        ),
        Row(
            "AP-2",
            "Background task dies",
            "Every read raises",
            (
                "consumer/test_supervision.py::"
                "test_a_bug_in_a_background_task_is_raised_by_every_get_until_the_stop",
                "consumer/test_health.py::test_a_task_that_died_is_death_at_once",
            ),
            has_none("asyncio tasks", "confluent-kafka", "kafka-python"),
        ),
        Row(
            "AP-3",
            "Killed while a record is processed",
            "Auto-commit has not covered it",
            (
                f"{GROUP}test_auto_commit.py::"
                "test_a_killed_process_has_not_committed_what_it_was_working_on",
            ),
        ),
        Row(
            "AP-4",
            "Listener raises, hangs or calls back",
            "Logged, time limited, no deadlock",
            (
                f"{GROUP}test_listeners.py::"
                "test_what_a_listener_raises_is_raised_by_one_poll_and_goes_to_log_and_events",
                f"{GROUP}test_listeners.py::test_a_listener_that_hangs_is_cut_off_and_is_an_event",
            ),
        ),
        Row(
            "AP-5",
            "Deserialiser raises",
            "An error with the bytes, seek skips",
            (
                "consumer/test_deserialising.py::"
                "test_the_records_ahead_of_a_bad_one_come_first_then_its_error_once_a_get",
            ),
            has_none("deserialisers in `Consumer`", "confluent-kafka"),
        ),
        Row(
            "AP-6",
            "Slow application, one partition paused",
            "Memory bounded, others continue",
            (
                "consumer/test_memory.py::"
                "test_a_slow_application_with_a_thousand_partitions_keeps_to_the_budget",
                "consumer/test_memory.py::"
                "test_paused_partitions_that_fill_the_budget_do_not_hold_up_others",
            ),
        ),
        Row(
            "AP-7",
            "Stopped while the broker is dead, or twice",
            "Returns within its timeout",
            (
                "consumer/test_stop.py::test_a_stop_returns_in_time_when_the_broker_died",
                "consumer/test_stop.py::test_stops_at_once_and_afterwards_say_the_same",
            ),
        ),
        Row(
            "AP-8",
            "Wrong loop or thread, never closed",
            "An error, or a warning",
            (
                "consumer/test_misuse.py::test_from_another_thread_every_call_is_refused",
                "consumer/test_misuse.py::"
                "test_a_consumer_left_open_does_not_keep_the_interpreter_from_ending",
            ),
        ),
        Row(
            "AP-9",
            "Forked or pickled",
            "The child raises, the parent continues",
            (
                "consumer/test_misuse.py::test_a_forked_child_is_refused_and_the_parent_goes_on",
                "consumer/test_misuse.py::test_a_consumer_is_not_copied",
            ),
        ),
        Row(
            "AP-10",
            "Clock jumps, process suspended",
            "No effect, or partitions are lost",
            (
                "consumer/test_misuse.py::test_a_wall_clock_that_jumps_changes_nothing",
                "consumer/test_misuse.py::"
                "test_a_process_that_was_stopped_for_two_sessions_has_lost_its_partitions",
            ),
        ),
        Row(
            "AP-11",
            "Spark driver or executor killed",
            "Each row once per committed batch",
            (
                "spark/chaos/test_kills.py::test_driver_is_killed_ten_times",
                "spark/chaos/test_kills.py::test_executors_of_a_cluster_are_killed",
            ),
            has_none("Spark source"),
        ),
    ),
    "Security": (
        Row(
            "SE-1",
            "Certificate wrong, expired or revoked",
            "TLS error before any request",
            (
                "consumer/test_tls.py::test_certificate_is_refused_at_once_and_says_why",
                "consumer/test_tls.py::test_revoked_certificate_is_refused",
            ),
        ),
        Row(
            "SE-2",
            "Advertised host not in the certificate",
            "Gets no credentials",
            (
                "consumer/test_tls.py::test_advertised_name_is_checked_and_gets_no_credentials",
                "client/test_pool.py::"
                "test_credentials_are_sent_in_clear_to_no_host_that_only_metadata_name",
            ),
        ),
        Row(
            "SE-3",
            "Old TLS, or a listener without it",
            "Refused, without a fallback",
            (
                "consumer/test_tls.py::test_server_of_an_old_tls_is_refused",
                "consumer/test_tls.py::test_listener_without_tls_is_named_and_not_used",
            ),
        ),
        Row(
            "SE-4",
            "Password without TLS to another machine",
            "Refused unless allowed",
            (
                "consumer/test_security.py::"
                "test_credentials_leave_this_machine_only_with_tls_or_on_request",
            ),
        ),
        Row(
            "SE-5",
            "Wrong password, or no SASL response",
            "`start()` raises after one attempt",
            (
                "consumer/test_security.py::"
                "test_wrong_password_fails_the_start_at_once_and_is_shown_nowhere",
                "client/test_pool.py::test_refused_credentials_are_not_tried_again_in_a_hurry",
                "client/test_sasl.py::test_words_of_a_broker_are_fit_for_a_log",
            ),
        ),
        Row(
            "SE-6",
            "Hostile SCRAM server",
            "Checks iterations, nonce, signature",
            (
                "client/test_sasl.py::test_challenge_that_asks_too_little_or_too_much_is_refused",
                "client/test_sasl.py::test_broker_that_cannot_prove_itself_is_refused",
            ),
        ),
        Row(
            "SE-7",
            "SASL session expires",
            "Renews it on the open connection",
            (
                "consumer/test_security.py::test_session_is_renewed_on_the_live_connection",
                "consumer/test_security.py::"
                "test_renewal_that_is_refused_ends_the_connection_with_the_reason",
            ),
        ),
        Row(
            "SE-8",
            "Token expired, missing or huge",
            "Refused, renewed before its end",
            (
                "consumer/test_security.py::test_token_that_is_no_good_is_refused",
                "client/test_sasl.py::test_a_token_may_be_as_long_as_brokers_accept",
                "spark/options/test_oauth.py::"
                "test_token_is_kept_until_four_fifths_of_its_life_are_over",
            ),
        ),
        Row(
            "SE-9",
            "Token endpoint redirects, or lacks TLS",
            "Refused",
            (
                "spark/options/test_oauth.py::test_redirects_are_not_followed",
                "spark/options/test_oauth.py::"
                "test_credentials_do_not_leave_the_machine_without_tls",
            ),
            has_none("token client", "aiokafka", "kafka-python"),
        ),
        Row(
            "SE-10",
            "Secrets in logs, errors or pickles",
            "Never shown",
            (
                "consumer/test_secrets.py::"
                "test_nothing_shows_a_secret_while_all_is_well_and_when_it_ends",
                "consumer/test_secrets.py::test_no_failure_to_start_shows_a_secret",
            ),
        ),
        Row(
            "SE-11",
            "Status page: hostile names, hosts, slow clients",
            "Escaped, refused, limited",
            (
                "extras/web/test_app.py::test_names_of_strangers_stay_within_their_quotes",
                "extras/web/test_app.py::test_foreign_host_is_refused",
                "extras/web/test_app.py::"
                "test_thousand_slow_clients_hold_up_neither_the_consumer_nor_a_probe",
            ),
            has_none("status page"),
        ),
        Row(
            "SE-12",
            "Embedded broker: hostile client",
            "Local by default, with limits",
            (
                "broker/security/test_listeners.py::"
                "test_listener_that_others_can_reach_must_be_allowed",
                "broker/security/test_sasl.py::"
                "test_large_requests_are_taken_from_authenticated_clients_only",
            ),
            has_none("broker", "aiokafka", "kafka-python"),
        ),
        Row(
            "SE-13",
            "Code or file names in settings and records",
            "Never imported, read or run",
            (
                "consumer/test_credentials.py::"
                "test_no_setting_and_no_record_has_anything_imported_read_or_run",
            ),
        ),
    ),
}
ROWS: Final = {row.name: row for rows in SECTIONS.values() for row in rows}
