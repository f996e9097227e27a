"""Compiled: KV blocks, counted, and under prefix caching known by name.

Without prefix caching one free block is as good as another and only their number is kept. With it
every block is a row of `pool`; the rules are those of `engine.reference.block_pool`, which says the
same in plain Python.

Parameters have the same names throughout: `p` the settings, `s` the state, `r` and `w` a request's
public row and working row, `pool`, `contents` and `tables` as `loop.run` describes them.
"""

from numba import njit

from queuesmith.engine.kernel.state import BLOCK, CONTENT


@njit(forceinline=True, _nrt=False)
def blocks_for(num_tokens, block_size):
    """Return the KV blocks that hold `num_tokens`."""
    return (num_tokens + block_size - 1) // block_size


@njit(forceinline=True, _nrt=False)
def more_blocks(num_tokens, blocks, block_size):
    """Return the KV blocks that `num_tokens` need beyond the `blocks` at hand.

    Most often none, which a multiplication finds out faster than a division.
    """
    if num_tokens <= blocks * block_size:
        return 0
    return blocks_for(num_tokens, block_size) - blocks


@njit(forceinline=True, _nrt=False)
def link_free(pool, block, after):
    """Put a block into the ring of free blocks."""
    before = pool[after].next
    pool[after].next = block
    pool[block].prev = after
    pool[block].next = before
    pool[before].prev = block


@njit(forceinline=True, _nrt=False)
def unlink_free(pool, block):
    """Take a block out of the ring of free blocks."""
    pool[pool[block].prev].next = pool[block].next
    pool[pool[block].next].prev = pool[block].prev


@njit(_nrt=False)
def forget(pool, contents, block):
    """Take a block off the list of those that hold its content."""
    content, newer, older = pool[block].content, pool[block].newer, pool[block].older
    if older < 0:
        contents[content].oldest = newer
    else:
        pool[older].newer = newer
    if newer < 0:
        contents[content].newest = older
    else:
        pool[newer].older = older
    pool[block].content = -1


@njit(_nrt=False)
def take_named(k, w, num_blocks):
    """Take free blocks from the front of the ring; they lose their content."""
    pool = k.pool
    for place in range(w.blocks, w.blocks + num_blocks):
        block = pool[0].next
        unlink_free(pool, block)
        if pool[block].content >= 0:
            forget(pool, k.contents, block)
        pool[block].num_holders = 1
        k.tables[BLOCK, w.table + place] = block


@njit(forceinline=True, _nrt=False)
def take_blocks(k, w, num_blocks):
    """Give a request more free blocks."""
    k.state.num_free_blocks -= num_blocks
    if k.settings.caching:
        take_named(k, w, num_blocks)
    w.blocks += num_blocks


@njit(_nrt=False)
def share_blocks(k, w, num_hits):
    """Let a request begin with the blocks that hold its first contents."""
    pool = k.pool
    for place in range(num_hits):
        block = k.contents[k.tables[CONTENT, w.table + place]].oldest
        if pool[block].num_holders == 0:
            unlink_free(pool, block)
            k.state.num_free_blocks -= 1
        pool[block].num_holders += 1
        k.tables[BLOCK, w.table + place] = block
    w.blocks = num_hits
    w.remembered = num_hits


@njit(_nrt=False)
def give_back_named(w, pool, tables):
    """Let go of blocks, last one first; return how many nobody else holds.

    Blocks without content go to the front of the ring, to be taken next; the others to the back, so
    that the start of a sequence outlives its end.
    """
    num_freed = 0
    front = 0
    for place in range(w.blocks - 1, -1, -1):
        block = tables[BLOCK, w.table + place]
        pool[block].num_holders -= 1
        if pool[block].num_holders == 0:
            num_freed += 1
            if pool[block].content < 0:
                link_free(pool, block, front)
                front = block
            else:
                link_free(pool, block, pool[0].prev)
    return num_freed


@njit(forceinline=True, _nrt=False)
def give_back_blocks(k, w):
    """Free all blocks of a request that no other one holds."""
    k.state.num_free_blocks += (
        give_back_named(w, k.pool, k.tables) if k.settings.caching else w.blocks
    )
    w.blocks = 0
    w.remembered = 0


@njit(_nrt=False)
def remember_named(k, w, num_full):
    """Note what each of a request's blocks holds that has become full."""
    pool, contents = k.pool, k.contents
    for place in range(w.remembered, num_full):
        block = k.tables[BLOCK, w.table + place]
        content = k.tables[CONTENT, w.table + place]
        newest = contents[content].newest
        pool[block].content = content
        pool[block].older = newest
        pool[block].newer = -1
        if newest < 0:
            contents[content].oldest = block
        else:
            pool[newest].newer = block
        contents[content].newest = block
    w.remembered = max(w.remembered, num_full)


@njit(forceinline=True, _nrt=False)
def remember_blocks(k, w, num_tokens):
    """Note what the blocks hold that the first `num_tokens` of a request fill."""
    p = k.settings
    if p.caching:
        remember_named(k, w, num_tokens // p.block_size)


@njit(_nrt=False)
def find_named(w, contents, tables, pool, most):
    """Count the leading blocks that are cached, `most` at most, and those that nobody holds."""
    num_hits = 0
    num_idle = 0
    while num_hits < most:
        block = contents[tables[CONTENT, w.table + num_hits]].oldest
        if block < 0:
            break
        num_hits += 1
        if pool[block].num_holders == 0:
            num_idle += 1
    return num_hits, num_idle


@njit(forceinline=True, _nrt=False)
def find_hits(r, p, w, pool, contents, tables):
    """Count the leading blocks that are cached, and those of them that nobody holds.

    One token is always left to compute.
    """
    if not p.caching:
        return 0, 0
    most = (r.num_prompt_tokens + r.num_output_tokens - 1) // p.block_size
    return find_named(w, contents, tables, pool, most)
