"""What vLLM 0.32.0's model runner takes for granted about one step after another, as assertions.

Told after ``GPUModelRunner._update_states``, which the CPU runner shares.
"""


class RunnerMirror:
    """The requests and block tables that a model runner would have."""

    def __init__(self, max_num_seqs, async_scheduling):
        self.max_num_seqs = max_num_seqs
        self.async_scheduling = async_scheduling
        self.blocks = {}
        self.batch = set()

    def step(self, output, scheduler):
        """Follow one step's output."""
        for request_id in output.finished_req_ids:
            self.blocks.pop(request_id, None)
            self.batch.discard(request_id)
        scheduled = set(output.num_scheduled_tokens)
        cached = output.scheduled_cached_reqs
        resumed = set(cached.resumed_req_ids)
        self.batch &= scheduled - resumed
        for new in output.scheduled_new_reqs:
            assert new.req_id not in self.blocks, "a new request is known already"
            self.blocks[new.req_id] = list(new.block_ids[0])
            self.batch.add(new.req_id)
        for index, request_id in enumerate(cached.req_ids):
            assert request_id in self.blocks, "a request that ran before is unknown"
            more = cached.new_block_ids[index]
            if request_id in resumed:
                assert more is not None, "a resumed request has no blocks"
                self.blocks[request_id] = list(more[0])
            elif more is not None:
                self.blocks[request_id] += more[0]
            if request_id not in self.batch:
                if self.async_scheduling and cached.num_output_tokens[index] > 0:
                    assert request_id in cached.all_token_ids, "its tokens are not sent along"
                self.batch.add(request_id)
        assert self.batch == scheduled
        assert len(self.batch) <= self.max_num_seqs
        for request_id in self.batch:
            held = scheduler.kv_cache_manager.get_block_ids(request_id)[0]
            assert self.blocks[request_id] == held, "block tables differ"
