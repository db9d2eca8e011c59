"""Cohere's SDK on rerank, asked by a test: python cohere_client.py <tasks.json >answers.json

Runs on the package that .ci/servers installs for it, not on those of the tests. Address, key and version of the API
come with each task; retries are as people have them.
"""

import json
import sys

import cohere


def ask(task):
    kind = cohere.ClientV2 if task["version"] == 2 else cohere.Client
    client = kind(api_key=task["key"], base_url=task["url"])
    try:
        got = client.rerank(**task["asked"])
    except cohere.core.ApiError as error:
        return {"error": type(error).__name__, "status": error.status_code, "body": error.body}
    billed = got.meta and got.meta.billed_units
    return {
        "results": [[each.index, each.relevance_score] for each in got.results],
        "search_units": billed.search_units if billed else None,
    }


json.dump([ask(task) for task in json.load(sys.stdin)], sys.stdout)
