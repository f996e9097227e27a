"""What the kernel works on: settings, state, and what it keeps per request, client and step.

All of it is NumPy records, because a compiled function takes a record array as one argument and
reads its fields without a reference count.
"""

from typing import Any, NamedTuple

import numpy as np

#: Settings of one run, in one row.
SETTINGS_DTYPE = np.dtype(
    [
        # EngineConfig
        ("max_num_seqs", "i8"),
        ("seats", "i8"),
        ("token_budget", "i8"),
        ("max_num_batched_tokens", "i8"),
        ("num_gpu_blocks", "i8"),
        ("block_size", "i8"),
        ("max_model_len", "i8"),
        ("long_prefill_token_threshold", "i8"),
        ("threshold_adaptive", "?"),
        ("chunked", "?"),
        ("reserve_full_isl", "?"),
        ("watermark_blocks", "i8"),
        ("caching", "?"),
        ("async_scheduling", "?"),
        ("priority_victims", "?"),
        ("passes_preempted", "?"),
        ("limits_lone_prefill", "?"),
        ("instant_prefill", "?"),
        ("has_limits", "?"),  # one of the next two
        ("max_num_queued_reqs", "i8"),
        ("max_num_queued_tokens", "i8"),
        # StepTime, s; the host overhead is in `a`, or `least_seconds` under async scheduling
        ("a", "f8"),
        ("least_seconds", "f8"),
        ("b1", "f8"),
        ("b2", "f8"),
        ("t0", "f8"),
        ("c", "f8"),
        ("d", "f8"),
        ("e", "f8"),
        ("f", "f8"),
        # the policy
        ("has_victim_key", "?"),
        ("has_admit", "?"),
        ("has_hold", "?"),
        ("has_reject", "?"),
        ("preemptive", "?"),
        ("keeps_heap", "?"),  # keys never change while a request waits, and nobody is set aside
        ("reads_clients", "?"),
        ("reads_prefill", "?"),
        ("reads_oldest_wait", "?"),
        # the run
        ("jump", "?"),
    ],
    align=True,
)

#: What changes from step to step besides the request rows, in one row.
STATE_DTYPE = np.dtype(
    [
        ("now", "f8"),
        ("until", "f8"),  # no step starts at that time or later
        ("allowance", "i8"),  # steps and questions to the policy until it returns to Python
        ("num_rows", "i8"),  # requests that are known of: those sent so far
        ("next_row", "i8"),  # the next to arrive
        ("next_abort", "i8"),  # lists[ABORTS, next_abort] is the next client to give up
        ("num_aborts", "i8"),
        ("num_waiting", "i8"),
        ("num_candidates", "i8"),  # lists[WAITING, :num_candidates] is the heap of this step
        ("num_running", "i8"),
        ("num_held", "i8"),
        ("num_free_blocks", "i8"),
        ("num_admissions", "i8"),
        ("num_ended", "i8"),  # finished, aborted or rejected
        ("num_decoding", "i8"),  # running requests that can be jumped over
        ("keys_are_fresh", "?"),
        ("out_of_order", "?"),  # `running` is not in admission order
        # what the server in front of the engine counts: prompts without a first token, and of the
        # tokens that came `now` what was otherwise before them; lists[LEFT, :num_left] gave up
        ("queued_prompt_tokens", "i8"),
        ("first_prompt_tokens_now", "i8"),
        ("num_finished_now", "i8"),
        ("num_left", "i8"),
        # what this step computes: P, D, KV and A of `StepTime`
        ("num_prefill_tokens", "i8"),
        ("num_decodes", "i8"),
        ("kv_tokens", "i8"),
        ("attention", "f8"),
        # as they were while the last step was computed, for who looks in before its end
        ("seen_waiting", "i8"),
        ("seen_running", "i8"),
        ("seen_waiting_tokens", "i8"),
        ("seen_free_blocks", "i8"),
        # asynchronous scheduling: the step that is computed while the next one is scheduled
        ("is_under_way", "?"),
        ("under_way", "i8"),  # the first of its lists
        ("num_under_way", "i8"),  # requests in it
        ("num_whole_under_way", "i8"),  # of them, those whose tokens are all computed by it
        ("seconds_under_way", "f8"),
        ("prefill_under_way", "i8"),
        # what the engine row is made of
        ("waiting_tokens", "i8"),
        ("waiting_arrivals_us", "i8"),  # since the first arrival; integers add exactly in any order
        ("prompt_tokens_seen", "i8"),
        ("num_accepted", "i8"),  # arrivals that were not turned away
        ("prompt_tokens_accepted", "i8"),
        ("prefill_tokens", "i8"),  # of all steps that have ended
        ("last_arrival", "f8"),
        ("mean_gap", "f8"),
        ("token_rate", "f8"),
        ("recent_ttft", "f8"),
        ("peak_backlog_time", "f8"),
        ("step_time", "f8"),
        # totals
        ("num_steps", "i8"),
        ("num_empty_steps", "i8"),  # in a row, up to now
        ("num_jumps", "i8"),
        ("num_computed_tokens", "i8"),
        ("num_recomputed_tokens", "i8"),
        ("num_cached_tokens", "i8"),
        ("num_entries", "i8"),
        ("num_preemptions", "i8"),
        ("num_preempted", "i8"),  # in this step: lists[PREEMPTED, :num_preempted]
        ("steps_at_end", "i8"),  # when a request last ended
        ("num_usual_gaps", "i8"),  # since the step began
        ("itl_bin", "i8"),  # where the last gap fell
        # the hook and row asked last, for whoever catches what a policy raised
        ("fault_hook", "i8"),
        ("fault_row", "i8"),
    ],
    align=True,
)

#: One row per step when a run is recorded.
STEP_DTYPE = np.dtype(
    [
        ("scheduled", "f8"),  # when its hooks were asked; before `start` if asynchronous
        ("start", "f8"),
        ("duration", "f8"),
        ("num_waiting", "i8"),  # at the start of the step
        ("num_running", "i8"),
        ("num_prefill_tokens", "i8"),
        ("num_decodes", "i8"),
        ("num_free_blocks", "i8"),  # when all blocks of the step are taken
        ("end_entry", "i8"),  # entries of this step end here in `log_tokens`
        ("end_preemption", "i8"),
    ],
    align=True,
)

#: What the engine knows of a request besides the row that its policy sees.
WORK_DTYPE = np.dtype(
    [
        # what every step looks at, in one cache line
        ("output_len", "i8"),  # the truth
        ("blocks", "i8"),  # KV blocks held
        ("tokens_under_way", "i8"),  # asynchronous scheduling: scheduled, not computed
        ("placeholders", "i8"),  # output tokens under way
        ("stale_tokens", "i8"),  # of those under way, from before a preemption
        ("ended", "?"),
        ("client", "i8"),  # code from 0
        ("key", "f8"),  # its waiting_key, when last asked
        ("table", "i8"),  # where its blocks stand in `tables`
        ("remembered", "i8"),  # of its blocks, whose content is known
        ("admission", "i8"),  # number of its last admission
        ("order", "f8"),  # its victim_key, while `running` is sorted
        ("tokens", "i8"),  # of this step, while `running` is sorted back
        ("output_at_admission", "i8"),
        ("prefill_at_arrival", "i8"),  # `prefill_tokens` of the engine then
        ("abort_time", "f8"),
        ("scheduled_ts", "f8"),  # results; NaN until they happen
        ("first_token_ts", "f8"),
        ("finished_ts", "f8"),
        ("aborted_ts", "f8"),
        ("rejected_ts", "f8"),
    ],
    align=True,
)

#: VTC counter and requests waiting or running, by client code.
CLIENT_DTYPE = np.dtype([("counter", "f8"), ("active", "i8")], align=True)

#: Lower edge in seconds and count of each bin of the inter-token histogram.
ITL_DTYPE = np.dtype([("edge", "f8"), ("count", "i8")], align=True)

#: A KV block under prefix caching. Free blocks are a ring through `next` and `prev` that begins and
#: ends at block 0, which vLLM keeps for itself; `newer` and `older` link blocks of one content.
BLOCK_DTYPE = np.dtype(
    [
        ("next", "i8"),
        ("prev", "i8"),
        ("num_holders", "i8"),
        ("content", "i8"),  # -1 when not known
        ("newer", "i8"),  # -1 at the end
        ("older", "i8"),
    ],
    align=True,
)

#: The blocks that hold a content: the one cached first and the one cached last; -1 for none.
CONTENT_DTYPE = np.dtype([("oldest", "i8"), ("newest", "i8")], align=True)

# Rows of `tables`: the blocks that each request holds, and what they will hold when full.
BLOCK, CONTENT = range(2)

# Lists of rows, one after the other in an array of shape (number of lists, num_requests). The last
# ones are there only where somebody gives up, or scheduling is asynchronous.
WAITING, RUNNING, TOKENS, HELD, PREEMPTED, SCRATCH, ABORTS, LEFT, FIRST_STEP = range(9)

# Two steps can be under way; each has lists from FIRST_STEP and FIRST_STEP + NUM_STEP_LISTS on: its
# rows in order of admission, the tokens of each, whether all tokens of the request are computed by
# it, and its rows in order of budget.
STEP_ROWS, STEP_TOKENS, STEP_IS_WHOLE, STEP_BUDGET, NUM_STEP_LISTS = range(5)
NUM_LISTS = FIRST_STEP + 2 * NUM_STEP_LISTS

# Hooks, as `fault_hook` names them.
WAITING_KEY, VICTIM_KEY, ADMIT, HOLD, REJECT = range(5)

#: The fleet as a whole, in one row.
FLEET_DTYPE = np.dtype(
    [
        ("horizon", "f8"),
        ("lookahead", "f8"),  # s; the shortest time anybody thinks, +inf if nobody waits
        ("reads_engines", "?"),  # the router looks at what engines do
        ("reads_hits", "?"),  # and at what they have cached
        ("allowance", "i8"),  # as of one engine; the router is asked too
        ("num_future", "i8"),  # heap[:num_future] are the rows whose arrival is known and to come
        # For whoever catches what was raised: the replica that ran, or the row that was routed.
        ("is_routing", "?"),
        ("fault_replica", "i8"),
        ("fault_row", "i8"),
    ],
    align=True,
)

#: What is kept of each replica beside its engine.
LINE_DTYPE = np.dtype(
    [
        ("sent_tokens", "i8"),  # prompt tokens of all requests sent
        ("num_watched", "i8"),  # watched[replica, :num_watched] are rows that somebody waits for
        ("num_ended", "i8"),  # when they were last looked at
        ("next_abort", "f8"),  # s; when the first of them gives up
    ],
    align=True,
)

# Rows of `placed`: the replica that a request was sent to, and its row there.
PLACED_REPLICA, PLACED_ROW = range(2)


class Kernel(NamedTuple):
    """All that one engine's step works on; `loop.run` gives shapes and meanings."""

    requests: Any
    engine: Any
    settings: Any
    state: Any
    work: Any
    lists: Any
    clients: Any
    itl: Any
    pool: Any
    contents: Any
    tables: Any
    residues: Any
    log_steps: Any
    log_tokens: Any
    log_preemptions: Any
    waiting_key: Any
    victim_key: Any
    admit: Any
    hold: Any
    reject: Any
