"""Images: what a request reserves, and what an answer is charged."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.records import Usage
from gateway.units import counts
from gateway.wings.media.images import IMAGES, LARGEST_GROUP, LARGEST_IMAGE_TOKENS, reported
from tests.test_floors import MODULES, complaints_of, impure


def test_pictures_by_the_names_of_chat() -> None:
    report = {
        "prompt_tokens": 1000,
        "completion_tokens": 100,
        "total_tokens": 1100,
        "input_tokens_details": {"text_tokens": 900, "image_tokens": 100},
    }
    more = (("image_in", 100), ("image_out", 100))
    assert reported(report) == Usage(1000, 100, source="reported", more=more)


def test_a_picture_that_failed_is_none() -> None:
    """BytePlus lists it by its error (Comfy-Org/ComfyUI#9952)."""
    data = [{"url": "u"}, {"error": {"code": "InternalServiceError"}}, {"b64_json": "v"}]
    usage = IMAGES.facts(json.dumps({"created": 1, "data": data}).encode()).usage
    assert usage is not None
    assert usage.more == counts({"images": 2})


@pytest.mark.parametrize(
    ("asked", "images"),
    [
        ({}, 1), ({"n": 3}, 3), ({"sequential_image_generation": "disabled"}, 1),
        ({"sequential_image_generation": None, "sequential_image_generation_options": {"max_images": 9}}, 1),
        ({"sequential_image_generation": "auto"}, LARGEST_GROUP),
        ({"sequential_image_generation": "auto", "sequential_image_generation_options": {}}, LARGEST_GROUP),
        ({"sequential_image_generation": "auto", "sequential_image_generation_options": {"max_images": 4}}, 4),
        ({"sequential_image_generation": "auto", "n": 2}, 2 * LARGEST_GROUP),
    ],
)  # fmt: skip
def test_a_group_of_images_is_reserved_by_its_default_too(asked: dict[str, Any], images: int) -> None:
    body = {"model": "seedream", "prompt": "a story", **asked}
    params = IMAGES.read(json.dumps(body).encode(), lambda model: None)
    assert params.units == counts({"images": images})
    assert params.candidates * (params.default_output or 0) == images * LARGEST_IMAGE_TOKENS


def test_the_formats_are_pure() -> None:
    names = [name for name in MODULES if name.startswith("gateway.wings.media.") and not name.endswith(".endpoints")]
    assert complaints_of(impure, names) == ""
