"""LSSP's four engines with KV blocks of their own: vLLM, chunked vLLM, Sarathi and SLAI.

Each keeps books in which a prompt costs token budget, while the slot engine gives prompts away:
what is "left to prefill" here throttles admission only. That is how LSSP ran them, so that is what
this says; ``docs/background/lssp.md`` names it as one of the study's weaknesses.

Compiled. Parameters have the same names throughout: `rows` the requests in order of arrival, `s`
the state of the run, `slots` the queues as :mod:`queuesmith.study.lssp_engine` describes them.
Ties are by row, which is LSSP's order by arrival, then id.
"""

from typing import Any

from numba import njit

from queuesmith.study.lssp_slots import ACTIVE, ADMITTED, PREEMPTED, RANKED, WAITING

BLOCK_SIZE = 16
#: Share of the blocks that an admission must leave free.
WATERMARK = 0.01
#: Tokens in a step of each engine; vLLM's is for whole prompts, the others' for chunks.
VLLM_BUDGET = 2560
CHUNK_BUDGET = 512
#: SLAI: the time between tokens of a class without a name, s, and its safety margins in steps.
TIME_BETWEEN_TOKENS = 0.5
MARGIN, MARGIN_WHEN_FULL, FULL = 5, 10, 0.96


@njit(cache=True)
def _blocks_for(num_tokens: int) -> int:
    return (num_tokens + BLOCK_SIZE - 1) // BLOCK_SIZE


@njit(cache=True)
def _can_allocate(s: Any, num_tokens: int) -> bool:
    spare = int(WATERMARK * s.num_blocks)
    return bool(s.num_free_blocks - _blocks_for(num_tokens) >= spare)


@njit(cache=True)
def _allocate(rows: Any, s: Any, row: int, num_tokens: int) -> None:
    rows[row].num_block_tokens = num_tokens
    rows[row].num_blocks = _blocks_for(num_tokens)
    s.num_free_blocks -= rows[row].num_blocks


@njit(cache=True)
def release(rows: Any, s: Any, row: int) -> None:
    """Give back a request's blocks and forget what was noted of it."""
    s.num_free_blocks += rows[row].num_blocks
    rows[row].num_blocks = 0
    rows[row].num_block_tokens = 0
    rows[row].num_prefill_left = 0
    rows[row].due = -1.0


@njit(cache=True)
def _can_append(rows: Any, s: Any, row: int) -> bool:
    needed = _blocks_for(rows[row].num_block_tokens + 1)
    return bool(needed <= rows[row].num_blocks or s.num_free_blocks >= 1)


@njit(cache=True)
def _append(rows: Any, s: Any, row: int) -> None:
    rows[row].num_block_tokens += 1
    if _blocks_for(rows[row].num_block_tokens) > rows[row].num_blocks:
        rows[row].num_blocks += 1
        s.num_free_blocks -= 1


@njit(cache=True)
def _preempt(rows: Any, s: Any, slots: Any, row: int) -> None:
    release(rows, s, row)
    slots[PREEMPTED, s.num_preempted] = row
    s.num_preempted += 1


@njit(cache=True)
def fits(rows: Any, s: Any, num_tokens: int) -> bool:
    """Tell whether the slot engine would take one more prompt, after those admitted so far."""
    seats = s.num_active + s.num_admitted + 1 <= s.max_num_seqs
    return bool(seats and s.num_kv_tokens + num_tokens <= s.max_kv_tokens)


@njit(cache=True)
def admit(rows: Any, s: Any, slots: Any, row: int, num_tokens: int) -> None:
    """Note an admission, charged with `num_tokens` for the rest of the step."""
    slots[ADMITTED, s.num_admitted] = row
    s.num_admitted += 1
    s.num_kv_tokens += num_tokens


@njit(cache=True)
def _rank(rows: Any, s: Any, slots: Any, which: int) -> int:
    """List active rows in order of arrival: all (0), decoding (1) or in prefill (2)."""
    num_ranked = 0
    for slot in range(s.num_active):
        row = slots[ACTIVE, slot]
        prefill = rows[row].num_prefill_left > 0
        if (which == 1 and prefill) or (which == 2 and not prefill):
            continue
        place = num_ranked
        while place > 0 and slots[RANKED, place - 1] > row:
            slots[RANKED, place] = slots[RANKED, place - 1]
            place -= 1
        slots[RANKED, place] = row
        num_ranked += 1
    return num_ranked


@njit(cache=True)
def _decode(rows: Any, s: Any, slots: Any, place: int, end: int) -> tuple[bool, int]:
    """Find a slot for the next token of the row at `place`, preempting from the back.

    Returns
    -------
    kept : bool
        False when the row itself had to go.
    end : int
        What is left of the ranking.
    """
    row = slots[RANKED, place]
    while not _can_append(rows, s, row):
        if end > place + 1:
            end -= 1
            _preempt(rows, s, slots, slots[RANKED, end])
        else:
            _preempt(rows, s, slots, row)
            return False, end
    _append(rows, s, row)
    return True, end


@njit(cache=True)
def vllm(rows: Any, s: Any, slots: Any) -> None:
    """Decide as vLLM 0.1.0: whole prompts within 2,560 tokens, first come, first served.

    A prompt longer than that can never be admitted, and nobody behind it either, to the end.
    """
    end = _rank(rows, s, slots, 0)
    num_kept = 0
    place = 0
    while place < end:
        kept, end = _decode(rows, s, slots, place, end)
        num_kept += kept
        place += 1
    num_tokens = num_kept
    num_seqs = num_kept
    for slot in range(s.num_waiting):
        row = slots[WAITING, slot]
        prompt = rows[row].prompt_len
        # One more block token than the prompt: the engine emits the first token in this step.
        if (
            not _can_allocate(s, prompt + 1)
            or num_tokens + prompt > VLLM_BUDGET
            or num_seqs + 1 > s.max_num_seqs
        ):
            return
        if fits(rows, s, prompt):
            _allocate(rows, s, row, prompt + 1)
            admit(rows, s, slots, row, prompt)
            num_tokens += prompt
            num_seqs += 1


@njit(cache=True)
def _admit_chunk(rows: Any, s: Any, slots: Any, row: int, num_tokens: int, num_seqs: int) -> int:
    """Admit a request with a chunk of what is left of the budget.

    Returns
    -------
    int
        The chunk; 0 when the slot engine would not take it, -1 when admission is over.
    """
    prompt = rows[row].prompt_len
    chunk = min(prompt, CHUNK_BUDGET - num_tokens)
    if not _can_allocate(s, prompt) or num_seqs + 1 > s.max_num_seqs or chunk <= 0:
        return -1
    if not fits(rows, s, prompt):
        return 0
    _allocate(rows, s, row, prompt)
    rows[row].num_prefill_left = prompt - chunk
    admit(rows, s, slots, row, prompt)
    return int(chunk)


@njit(cache=True)
def _admit_in_order(rows: Any, s: Any, slots: Any, num_tokens: int, num_seqs: int) -> None:
    for slot in range(s.num_waiting):
        chunk = _admit_chunk(rows, s, slots, slots[WAITING, slot], num_tokens, num_seqs)
        if chunk < 0:
            return
        if chunk > 0:
            num_tokens += chunk
            num_seqs += 1


@njit(cache=True)
def chunked_vllm(rows: Any, s: Any, slots: Any) -> None:
    """Decide as vLLM 0.4.2, chunked: decodes and prefills share 512 tokens by arrival."""
    end = _rank(rows, s, slots, 0)
    num_tokens = 0
    num_seqs = 0
    place = 0
    while place < end and num_tokens < CHUNK_BUDGET:
        row = slots[RANKED, place]
        if rows[row].num_prefill_left > 0:
            chunk = min(rows[row].num_prefill_left, CHUNK_BUDGET - num_tokens)
            rows[row].num_prefill_left -= chunk
            num_tokens += chunk
            num_seqs += 1
        else:
            kept, end = _decode(rows, s, slots, place, end)
            num_tokens += kept
            num_seqs += kept
        place += 1
    _admit_in_order(rows, s, slots, num_tokens, num_seqs)


@njit(cache=True)
def sarathi(rows: Any, s: Any, slots: Any) -> None:
    """Decide as Sarathi-Serve: decodes first, then prefills, then admissions, in 512 tokens."""
    end = _rank(rows, s, slots, 1)
    num_kept = 0
    place = 0
    while place < end:
        kept, end = _decode(rows, s, slots, place, end)
        num_kept += kept
        place += 1
    num_prefills = _rank(rows, s, slots, 2)
    num_tokens = num_kept
    for place in range(num_prefills):
        row = slots[RANKED, place]
        chunk = min(rows[row].num_prefill_left, CHUNK_BUDGET - num_tokens)
        if chunk > 0:
            rows[row].num_prefill_left -= chunk
            num_tokens += chunk
    _admit_in_order(rows, s, slots, num_tokens, num_kept + num_prefills)


@njit(cache=True)
def _rank_by_due(rows: Any, s: Any, slots: Any) -> int:
    """List the decoding rows by the last time at which they can be served, then by arrival."""
    num_ranked = 0
    for slot in range(s.num_active):
        row = slots[ACTIVE, slot]
        if rows[row].num_prefill_left > 0:
            continue
        place = num_ranked
        while place > 0:
            other = slots[RANKED, place - 1]
            before = rows[row].due < rows[other].due
            if not before and not (rows[row].due == rows[other].due and row < other):
                break
            slots[RANKED, place] = other
            place -= 1
        slots[RANKED, place] = row
        num_ranked += 1
    return num_ranked


@njit(cache=True)
def slai(rows: Any, s: Any, slots: Any) -> None:
    """Decide as SLAI: shortest prompt first; decodes wait until due, unless budget is left.

    A decode that is not served is held: the slot engine gives it no token in this step.
    """
    margin = MARGIN if s.num_kv_tokens / s.max_kv_tokens < FULL else MARGIN_WHEN_FULL
    due = s.now + TIME_BETWEEN_TOKENS - margin * s.step_time
    num_prefills = 0
    for slot in range(s.num_active):
        row = slots[ACTIVE, slot]
        if rows[row].num_prefill_left > 0:
            num_prefills += 1
        elif rows[row].due < 0.0:
            rows[row].due = due
    num_decodes = _rank_by_due(rows, s, slots)
    num_served = 0
    while num_served < num_decodes and s.now >= rows[slots[RANKED, num_served]].due:
        num_served += 1
    num_tokens = num_served
    # Sic: in order of admission, where Sarathi goes by arrival.
    for slot in range(s.num_active):
        row = slots[ACTIVE, slot]
        chunk = min(rows[row].num_prefill_left, CHUNK_BUDGET - num_tokens)
        if rows[row].num_prefill_left > 0 and chunk > 0:
            rows[row].num_prefill_left -= chunk
            num_tokens += chunk
    num_tokens = _admit_shortest(rows, s, slots, num_tokens, num_decodes + num_prefills)
    num_served = min(num_decodes, num_served + max(0, CHUNK_BUDGET - num_tokens))
    for place in range(num_decodes):
        row = slots[RANKED, place]
        if place < num_served:
            rows[row].due = due
        else:
            rows[row].held = True


@njit(cache=True)
def _admit_shortest(rows: Any, s: Any, slots: Any, num_tokens: int, num_seqs: int) -> int:
    """Admit by prompt length, then arrival; return the tokens used."""
    tried = -1
    for _ in range(s.num_waiting):
        best = -1
        for slot in range(s.num_waiting):
            row = slots[WAITING, slot]
            if _shorter(rows, tried, row) and (best < 0 or _shorter(rows, row, best)):
                best = row
        chunk = _admit_chunk(rows, s, slots, best, num_tokens, num_seqs)
        if chunk < 0:
            break
        if chunk > 0:
            num_tokens += chunk
            num_seqs += 1
        tried = best
    return num_tokens


@njit(cache=True)
def _shorter(rows: Any, row: int, other: int) -> bool:
    """Tell whether `row` comes before `other` by prompt length, then arrival; -1 before all."""
    if row < 0:
        return True
    return bool(
        rows[row].prompt_len < rows[other].prompt_len
        or (rows[row].prompt_len == rows[other].prompt_len and row < other)
    )
