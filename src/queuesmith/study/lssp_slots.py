"""The state of LSSP's slot engine: what its steps and its policies read and write."""

import numpy as np

#: Limits of LSSP's one simulated accelerator, and its price for a step whatever is in it, s.
MAX_NUM_SEQS = 64
MAX_KV_TOKENS = 131_072
STEP_TIME = 0.001
#: Steps after the last arrival before the run is cut off.
DRAIN_STEPS = 50_000

#: Rows of the queues. RANKED is scratch for policies.
WAITING, ACTIVE, ADMITTED, PREEMPTED, RANKED = range(5)
NUM_QUEUES = 5

#: A request. Policies read the first five; `output_len` is for the engine alone. Instants that
#: have not come are NaN. From `num_blocks` on, the books of those policies that keep any.
ROW = np.dtype(
    [
        ("arrival_time", np.float64),
        ("deadline", np.float64),
        ("prompt_len", np.int64),
        ("predicted_output_tokens", np.int64),
        ("held", np.bool_),
        ("output_len", np.int64),
        ("num_output_tokens", np.int64),
        ("num_preemptions", np.int64),
        ("admitted_ts", np.float64),
        ("first_token_ts", np.float64),
        ("last_token_ts", np.float64),
        ("num_blocks", np.int64),
        ("num_block_tokens", np.int64),
        ("num_prefill_left", np.int64),
        ("due", np.float64),
    ],
    align=True,
)

#: The run. `num_kv_tokens` is what active requests hold at the start of a step, and grows with what
#: the policy admits in it; `credit` belongs to scorpio.
STATE = np.dtype(
    [
        ("now", np.float64),
        ("step_time", np.float64),
        ("max_num_seqs", np.int64),
        ("max_kv_tokens", np.int64),
        ("num_kv_tokens", np.int64),
        ("num_waiting", np.int64),
        ("num_active", np.int64),
        ("num_admitted", np.int64),
        ("num_preempted", np.int64),
        ("num_blocks", np.int64),
        ("num_free_blocks", np.int64),
        ("credit", np.float64),
    ],
    align=True,
)
