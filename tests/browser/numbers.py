"""Every number of every page of the dashboard, with the test that compares it with the admin API.

`PAGES` names each page by its address, and for each the selectors of what shows numbers, with the test of each.
`test_every_number_of_a_page_is_in_the_table` finds digits on a page that no selector covers;
tests/browser/test_numbers_table.py finds a page without an entry, and a test that is gone or runs on one store only.
"""

from __future__ import annotations

from collections.abc import Mapping

Tests = Mapping[str, str]
"""The name of a test, by the selector of the numbers that it compares."""

FREE = (
    "[data-choice]", "thead", "th[scope=row]", ".legend", "svg", "a", "code", ".mono", ".clip", ".why-cell", ".tile h3",
    "h2", "select", "datalist", "#updated", "#kept-content",
)  # fmt: skip
"""What has digits and says no number of the API: ranges and percentiles by their names, names of things, times of rows,
messages, settings; and the axes of charts, whose bars and tables have tests."""

ONE = "test_the_page_of_one_has_the_numbers_of_the_reports"
OVERVIEW = "test_the_overview_has_the_numbers_of_the_reports"
MEMBER = "test_a_member_sees_the_numbers_of_the_own_reports"
CHART = "test_chart_says_in_words_and_in_a_table_what_it_draws"

SUBJECT: Tests = {
    "[data-sum]": ONE,
    "[data-compared]": ONE,
    ".subject-report .readout": ONE,
    ".subject-report td": ONE,
}
OWNED: Tests = {
    ".subject-report section > .note": "test_percentiles_are_those_of_the_own_calls",
    ".subject-report [data-reason], .subject-report section .note": ONE,
}

KEYS: Tests = {
    "main .note": "test_the_table_of_keys_quotas_and_teams_has_the_numbers_of_the_api",
    ".quota": "test_bars_are_those_of_the_ledger",
    "main td": "test_the_table_of_keys_quotas_and_teams_has_the_numbers_of_the_api",
}

PAGES: Mapping[str, Tests] = {
    "overview": {
        "[data-figure=spend]": "test_spend_of_the_month_and_its_forecast",
        "section[aria-labelledby=money-title] td": "test_spend_of_the_month_and_its_forecast",
        "section[aria-labelledby=now-title]": "test_problems_are_those_of_the_api",
        "[data-figure=requests-in-range]": "test_range_is_compared_with_the_period_before",
        "[data-figure=errors-in-range]": OVERVIEW,
        "[data-figure=first-token-p95]": OVERVIEW,
        "[data-figure=near]": "test_who_is_near_a_limit",
        "[data-tile=requests], [data-tile=in-flight]": "test_rates_come_of_two_samples",
        "[data-tile]": "test_the_live_strip_has_the_numbers_of_the_gateway",
        "[data-sum]": OVERVIEW,
        ".readout": CHART,
        "section[aria-labelledby=usage-title] details.as-table td": CHART,
        "section[aria-labelledby=who-title] td": "test_sums_are_those_of_the_report",
        "section[aria-labelledby=latency-title] td": OVERVIEW,
        "[data-upstream] .more": "test_live_numbers_are_those_of_the_metrics",
    },
    "mine": {
        "[data-figure=spend], [data-figure=requests-in-range]": MEMBER,
        "[data-figure]": "test_range_is_compared_with_the_period_before",
        "[data-sum]": MEMBER,
        ".readout": CHART,
        "section[aria-labelledby=usage-title] td": MEMBER,
        "section[aria-labelledby=latency-title] td": MEMBER,
        "section[aria-labelledby=latency-title] .note": "test_percentiles_are_those_of_the_own_calls",
        ".quota": "test_what_is_left_and_when_it_is_free",
        "section[aria-labelledby=refused-title] td": "test_last_refusals_have_their_reason",
        "section[aria-labelledby=connect-title]": "test_every_tool_has_its_settings",
    },
    "calls": {
        "section[aria-labelledby=calls-title] .note": "test_a_call_and_its_page_have_the_numbers_of_its_record",
        "section[aria-labelledby=calls-title] td": "test_a_call_and_its_page_have_the_numbers_of_its_record",
        "#refused [data-reason]": "test_refusals_have_the_numbers_of_the_api",
        "#refused td": "test_refusals_have_the_numbers_of_the_api",
    },
    "keys": KEYS,
    "keys?by=owner": KEYS,
    "keys?by=team": KEYS,
    "keys/alice": {
        **SUBJECT, **OWNED,
        "#why-refused": "test_quotas_on_the_page_of_a_key",
        ".quota": "test_quotas_on_the_page_of_a_key",
    },
    "teams/crew": {
        **SUBJECT, **OWNED,
        ".quota": "test_a_team_shows_what_its_keys_have_spent_and_who_they_are",
        "dialog h3": "test_a_team_shows_what_its_keys_have_spent_and_who_they_are",
    },
    "models": {
        "main .note": "test_upstreams_have_the_numbers_of_the_api",
        "td:has([data-before])": "test_a_p95_has_that_of_the_time_before_beside_it",
        "section[aria-labelledby=models-title] td": "test_models_and_upstreams_are_those_of_the_api",
        "section[aria-labelledby=upstreams-title] td": "test_upstreams_have_the_numbers_of_the_api",
    },
    "models/gpt-3.5-turbo-instruct": {
        **SUBJECT,
        "[data-reason], .subject-report section .note": "test_the_page_of_a_model_has_its_usage",
        "dialog .facts": "test_the_page_of_a_model_has_its_usage",
    },
    "upstreams/main": {
        **SUBJECT,
        ".quota": "test_the_page_of_an_upstream_has_state_limits_and_percentiles",
        "dialog .facts": "test_the_page_of_an_upstream_has_state_limits_and_percentiles",
    },
    "bills": {
        "[data-bill]": "test_records_and_bill_have_the_numbers_of_the_api",
        "main td": "test_records_and_bill_have_the_numbers_of_the_api",
    },
    "statement": {
        "main .note": "test_the_statement_of_a_month_has_the_numbers_of_the_api",
        "main td": "test_the_statement_of_a_month_has_the_numbers_of_the_api",
        "[data-bill]": "test_the_statement_of_a_month_has_the_numbers_of_the_api",
    },
    "invoice": {"main form": "test_an_invoice_has_the_numbers_of_the_comparison"},
    "playground": {"main .playground": "test_a_streamed_answer_with_its_tokens_cost_and_headers"},
    "audit": {"main td": "test_audit_log_says_who_changed_what"},
}  # fmt: skip
