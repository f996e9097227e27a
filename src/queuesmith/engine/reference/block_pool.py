"""KV blocks of the reference engine: who holds which, and what content each still carries.

The rules are those of vLLM 0.32.0's ``BlockPool`` and ``KVCacheManager``. Without prefix caching no
block ever has a content, and only the number of free blocks matters.
"""

from collections import OrderedDict


class BlockPool:
    """Blocks 1 to ``num_gpu_blocks - 1``; vLLM keeps block 0, the null block, for itself.

    Attributes
    ----------
    free : OrderedDict
        Blocks that nobody holds, in the order in which they will be taken. A free block keeps its
        content until it is taken.
    num_holders : list of int
        Requests that hold each block.
    content : list of int or None
        What a full block holds: equal numbers mean equal tokens and an equal past.
    cached : dict
        Blocks by content, the one cached first at the front.
    """

    def __init__(self, num_gpu_blocks: int) -> None:
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_gpu_blocks))
        self.num_holders = [0] * num_gpu_blocks
        self.content: list[int | None] = [None] * num_gpu_blocks
        self.cached: dict[int, list[int]] = {}

    def take(self, num_blocks: int) -> list[int]:
        """Take free blocks from the front; they lose what they carried."""
        taken = []
        for _ in range(num_blocks):
            block, _nothing = self.free.popitem(last=False)
            content = self.content[block]
            if content is not None:
                self.cached[content].remove(block)
                self.content[block] = None
            self.num_holders[block] = 1
            taken.append(block)
        return taken

    def share(self, blocks: list[int]) -> None:
        """Hold blocks that were found by their content."""
        for block in blocks:
            if self.num_holders[block] == 0:
                del self.free[block]
            self.num_holders[block] += 1

    def give_back(self, blocks: list[int]) -> None:
        """Let go of a request's blocks, last one first.

        Blocks without content go to the front, to be taken next; the others to the back, so that
        the start of a sequence outlives its end.
        """
        forgettable: list[int] = []
        memorable: list[int] = []
        for block in reversed(blocks):
            self.num_holders[block] -= 1
            if self.num_holders[block] == 0:
                (forgettable if self.content[block] is None else memorable).append(block)
        for block in reversed(forgettable):
            self.free[block] = None
            self.free.move_to_end(block, last=False)
        for block in memorable:
            self.free[block] = None

    def remember(self, block: int, content: int) -> None:
        """Note what a block holds, now that it is full."""
        self.content[block] = content
        self.cached.setdefault(content, []).append(block)

    def find(self, contents: list[int]) -> list[int]:
        """Return blocks that hold the longest known start of these contents."""
        found = []
        for content in contents:
            blocks = self.cached.get(content)
            if not blocks:
                break
            found.append(blocks[0])
        return found
