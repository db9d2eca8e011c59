"""Where llama.cpp's own Responses and Messages differ from our translations of its chat, and why ours is right."""

from __future__ import annotations

from .differences import Row

DIFFERS = (
    Row(r"messages shown \.content", "the client did not ask for thinking, and llama.cpp shows it all the same"),
    Row(r"messages shown \.stop_sequence",
        "llama.cpp's chat does not say which sequence ended the text; its Messages name it beside `end_turn`"),
    Row(r"messages shown \.usage\.cache_creation_input_tokens", "zero, as Anthropic reports it"),
    Row(r"responses shown \.(status|incomplete_details|completed_at|output\[\]\.status)",
        "an answer that the limit cut is incomplete; llama.cpp calls it completed"),
    Row(r"responses shown \.(background|instructions|max_output_tokens|metadata|parallel_tool_calls|reasoning|store"
        r"|text|tool_choice|tools|truncation)",
        "parameters come back in the answer; llama.cpp's has none, though the SDK's type requires some"),
    Row(r"responses shown \.output\[\]\.call_id", "chat's own id, where llama.cpp puts `call_` before it"),
    Row(r"responses shown \.output\[\]\.encrypted_content", "there is none: llama.cpp writes an empty one"),
    Row(r"responses shown \.usage\.(input_tokens_details\.cache_write_tokens|output_tokens_details)",
        "zeros: the SDK's type requires them"),
)  # fmt: skip
_LIFE = r"responses response\.(created|in_progress|completed) \.response\."
STREAMS_DIFFER = (
    # Messages.
    Row(r"messages message_start \.message\.usage\.input_tokens", "an estimate: clients show it until the end"),
    Row(r"messages message_(start \.message|delta )\.usage\.cache_creation_input_tokens", "zero, as Anthropic has it"),
    Row(r"messages message_delta \.usage\.(input_tokens|cache_read_input_tokens)",
        "the counts of the whole call, as Anthropic reports them; llama.cpp has them in message_start"),
    Row(r"messages message_delta \.delta\.stop_sequence", "as of plain answers"),
    Row(r"messages [+-]content_block_stop",
        "a block ends before the next one begins, as Anthropic's SDK expects; llama.cpp ends all at the end"),
    Row(r"messages content_block_start:thinking \.content_block\.signature", "empty: the SDK's type requires it"),
    Row(r"messages -content_block_delta:signature_delta", "an empty addition to an empty signature"),
    Row(r"messages content_block_start:tool_use \.content_block\.input", "empty: the SDK's type requires it"),
    Row(r"messages -content_block_(start:thinking|delta:thinking_delta)",
        "the client did not ask for thinking, and llama.cpp shows it all the same"),
    Row(r"messages content_block_(start:text|delta:text_delta|stop) \.index", "no block of thinking stands before it"),
    # Responses: the object at the beginning and at the end.
    Row(_LIFE + r"(background|instructions|max_output_tokens|metadata|model|output|parallel_tool_calls|reasoning|store"
        r"|text|tool_choice|tools|truncation)",
        "the object is whole from the first event on, and parameters come back in it"),
    Row(_LIFE + r"(created_at|completed_at)", "the time of the answer"),
    Row(_LIFE + r"output\[\]\.(call_id|encrypted_content|status)", "as of plain answers"),
    Row(_LIFE + r"usage\..*", "as of plain answers"),
    Row(r"responses (\+response\.incomplete|-response\.completed)",
        "an answer that the limit cut is incomplete; llama.cpp calls it completed"),
    # Responses: items.
    Row(r"responses response\.\S+ \.(output_index|content_index)",
        "each event says where it belongs, as the SDK's types require; llama.cpp's do not"),
    Row(r"responses response\.(output_text\.(delta|done)|content_part\.added:output_text) (\.part)?"
        r"\.(logprobs|annotations)", "empty where there are none: the SDK's type requires it"),
    Row(r"responses response\.output_item\.\w+:(function_call|message|reasoning) \.item\."
        r"(call_id|encrypted_content|status)", "as of plain answers"),
    Row(r"responses \+response\.function_call_arguments\.done", "the SDK waits for it; llama.cpp has none"),
    Row(r"responses \+response\.(content_part\.(added|done):reasoning_text|reasoning_text\.done)",
        "what is thought is a part that begins and ends"),
    Row(r"responses [+-]response\.output_item\.done:reasoning",
        "the item ends before the next one begins; llama.cpp ends all at the end"),
)  # fmt: skip
