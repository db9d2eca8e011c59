"""Calls that name kept files, or items of kept responses: each has to be the caller's own, and the call goes to the
upstream that keeps it."""

from __future__ import annotations

import asyncio
import json

from gateway.api.file_ids import ids_in, may_name_files
from gateway.errors import InvalidRequest
from gateway.pipeline import Services
from gateway.records import Call, Document


async def bound_to_files(call: Call, parts: Services) -> Call:
    """The call, bound to the files that it names. Raises `NotFound` for one that is not the key's, and `InvalidRequest`
    for one that another upstream keeps than what the call continues."""
    params, upstreams = call.params, parts.config.upstreams
    for file_id in _named(params.document):
        bond = await parts.bonds.require(call.key.in_team, file_id, "file_id", upstreams)
        if params.refers_to is None:
            params = params._replace(refers_to=file_id, refers_param="file_id")
            continue
        first = await parts.bonds.require(call.key.in_team, params.refers_to, params.refers_param, upstreams)
        if (first.upstream, first.account) != (bond.upstream, bond.account):
            raise InvalidRequest(
                f"'{file_id}' and '{first.id}' are kept by different providers. Send the content of the file instead "
                "of its id.",
                param="file_id",
                code="file_not_available",
            )
        params = params._replace(prompt_tokens=params.prompt_tokens + bond.tokens, is_prompt_exact=False)
    return call._replace(params=params)


def _named(document: Document) -> list[str]:
    """The ids that a body names, each once."""
    if document.form is not None:
        return []
    large = document.large
    if not may_name_files([document.text.encode()] if large is None else large.pieces):
        return []
    members = document.members if large is None else json.loads(b"".join(large.pieces))
    return list(dict.fromkeys(ids_in(members)))


async def bound_to_items(call: Call, parts: Services) -> Call:
    """The call, bound to the items of answers that it names by their ids. Raises `NotFound` for one that is not the
    key's, and `InvalidRequest` where what the call names is kept by different accounts."""
    params, bonds, upstreams = call.params, parts.bonds, parts.config.upstreams
    others = [item.id for item in params.items if not item.is_sole]
    foreign = await asyncio.gather(*[bonds.is_of_another(call.key.in_team, each) for each in others])
    names = [item.id for item in params.items if item.is_sole]
    names += [name for name, is_foreign in zip(others, foreign, strict=True) if is_foreign]
    if not names:
        return call
    found = await asyncio.gather(*[bonds.require(call.key.in_team, name, "item", upstreams) for name in names])
    tokens = sum([bond.tokens for bond in found])
    if params.refers_to is None:
        params = params._replace(refers_to=found[0].id, refers_param="item")
        tokens -= found[0].tokens  # which the bond of the call adds
    else:
        found.append(await bonds.require(call.key.in_team, params.refers_to, params.refers_param, upstreams))
    if len({(bond.upstream, bond.account) for bond in found}) > 1:
        raise InvalidRequest(
            "Items of the input are kept by different providers. Send the items themselves instead of their ids.",
            param="input",
            code="item_not_available",
        )
    return call._replace(params=params._replace(prompt_tokens=params.prompt_tokens + tokens, is_prompt_exact=False))
