"""Calls that name kept files, or items of kept responses: each has to be the caller's own, and the call goes to the
upstream that keeps it."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.api.file_ids import named_files
from gateway.errors import InvalidRequest
from gateway.pipeline import Services
from gateway.records import Bond, Call, ItemRef, KeyInTeam
from gateway.web.endpoints import WingBinding

from .batch_file import of_batch_file


async def _bound(call: Call, parts: Services) -> Call:
    """The call, bound to all that it names."""
    if call.params.items:
        call = await _bound_to_items(call, parts)
    return call if parts.config.files.upstream is None else await _bound_to_files(call, parts)


async def _bound_to_files(call: Call, parts: Services) -> Call:
    """The call, bound to the files that it names. Raises `NotFound` for one that is not the key's, and `InvalidRequest`
    for one that another upstream keeps than what the call continues."""
    params, upstreams = call.params, parts.config.upstreams
    for file_id in named_files(params.document):
        bond = await parts.bonds.require(call.key.in_team, file_id, "file_id", upstreams)
        if params.refers_to is None:
            params = params._replace(refers_to=file_id, refers_param="file_id")
            continue
        first = await parts.bonds.require(call.key.in_team, params.refers_to, params.refers_param, upstreams)
        if (first.upstream, first.account) != (bond.upstream, bond.account):
            raise elsewhere(bond, first)
        params = params._replace(prompt_tokens=params.prompt_tokens + bond.tokens, is_prompt_exact=False)
    return call._replace(params=params)


async def named_in_items(
    key: KeyInTeam, file_ids: Sequence[str], items: Sequence[ItemRef], parts: Services
) -> list[Bond]:
    """The bonds of the files that items of a conversation name. Raises `NotFound` for a file that is not the key's, and
    for an item with the id of another key's."""
    bonds, upstreams = parts.bonds, parts.config.upstreams
    for name in await bonds.of_another(key, [item.id for item in items]):
        await bonds.require(key, name, "item", upstreams)
    if parts.config.files.upstream is None:
        return []
    return [await bonds.require(key, each, "file_id", upstreams) for each in file_ids]


def elsewhere(file: Bond, other: Bond) -> InvalidRequest:
    """The refusal of a file that another account keeps than `other`."""
    return InvalidRequest(
        f"'{file.id}' and '{other.id}' are kept by different providers. Send the content of the file instead of its "
        "id.",
        param="file_id",
        code="file_not_available",
    )


async def _bound_to_items(call: Call, parts: Services) -> Call:
    """The call, bound to the items of answers that it names by their ids. Raises `NotFound` for one that is not the
    key's, and `InvalidRequest` where what the call names is kept by different accounts."""
    params, bonds, upstreams = call.params, parts.bonds, parts.config.upstreams
    others = [item.id for item in params.items if not item.is_sole]
    names = [item.id for item in params.items if item.is_sole]
    names += await bonds.of_another(call.key.in_team, others)
    if not names:
        return call
    found = await bonds.require_all(call.key.in_team, names, "item", upstreams)
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


BINDING = WingBinding(complete=of_batch_file, bind=_bound)
