"""LSSP's slot engine and panel once more, in plain Python: slow, and meant to be read."""

import math
from dataclasses import dataclass, field

STEP = 0.001
BLOCK = 16


@dataclass(eq=False)
class Request:
    row: int
    arrival: float
    prompt: int
    output: int
    predicted: int
    deadline: float
    produced: int = 0
    admitted: float = math.nan
    first: float = math.nan
    last: float = math.nan
    preemptions: int = 0

    @property
    def estimate(self):
        return 0.5 * self.prompt + 1.0 * self.predicted


@dataclass
class View:
    """What a policy sees, and what it decides."""

    now: float
    waiting: list
    active: list
    max_seqs: int
    max_kv: int
    memory: dict
    admitted: list = field(default_factory=list)
    preempted: list = field(default_factory=list)
    held: list = field(default_factory=list)
    charged: int = 0

    @property
    def kv(self):
        return sum(one.prompt + one.produced for one in self.active)

    def laxity(self, one):
        return one.deadline - self.now - one.estimate * STEP

    def admit_if_it_fits(self, one, charge=None):
        charge = one.prompt if charge is None else charge
        if len(self.active) + len(self.admitted) + 1 > self.max_seqs:
            return False
        if self.kv + self.charged + charge > self.max_kv:
            return False
        self.admitted.append(one)
        self.charged += charge
        return True


def greedily(key):
    def policy(view):
        for one in sorted(view.waiting, key=lambda one: key(one, view)):
            view.admit_if_it_fits(one)

    return policy


def fair_share(one, view):
    deficit = len(view.waiting) / max(1, len(view.active) + 1)
    return (-(deficit / max(one.estimate, 1e-9)), one.arrival)


def kv_constrained(view):
    def key(one):
        laxity = view.laxity(one)
        return (laxity > 0.25, one.prompt + 0.25 * one.predicted, laxity)

    for one in sorted(view.waiting, key=key):
        usage = (view.kv + view.charged + one.prompt) / view.max_kv
        if usage <= 0.82 or view.laxity(one) <= 0.25:
            view.admit_if_it_fits(one)


def token_budget(view):
    for one in sorted(view.waiting, key=lambda one: (one.predicted, one.arrival)):
        view.admit_if_it_fits(one, charge=math.ceil(one.prompt / BLOCK) * BLOCK)


def scorpio(view):
    if not view.waiting:
        return
    credit = min(4.0, view.memory.get("credit", 4.0) + 2.0)
    view.memory["credit"] = credit
    hopeful = [
        one
        for one in view.waiting
        if view.laxity(one) >= 0 and one.deadline - view.now - 0.5 * one.prompt * STEP >= 0
    ]
    if not hopeful:
        return
    kv, seats = view.kv / view.max_kv, len(view.active) / 64
    guard = (
        kv >= 0.65
        or seats >= 0.70
        or len(view.waiting) / 64 >= 3.0
        or sum(view.laxity(one) for one in hopeful) / len(hopeful) < 0
    )
    if guard and kv >= 0.65:
        hopeful = [one for one in hopeful if one.predicted <= 256 or view.laxity(one) < 0.5]

    def key(one):
        score = 1.0 / max(view.laxity(one), 1e-9) + 1.0 + 0.05 * (view.now - one.arrival)
        if guard:
            score -= 0.35 * one.predicted * seats
        return (-score, view.laxity(one), one.arrival)

    most = max(1, int(credit)) if guard else len(hopeful)
    for one in sorted(hopeful, key=key):
        if len(view.admitted) >= most:
            return
        if view.admit_if_it_fits(one) and guard:
            view.memory["credit"] = max(0.0, view.memory["credit"] - 1.0)


class Books:
    """KV blocks and prompts left, as the policy believes them to be."""

    def __init__(self, view):
        self.view = view
        self.tokens, self.blocks, self.left, self.due = view.memory.setdefault(
            "books", ({}, {}, {}, {})
        )
        for one in [one for one in self.tokens if one not in view.active]:
            self.forget(one)

    def forget(self, one):
        for book in (self.tokens, self.blocks, self.left, self.due):
            book.pop(one, None)

    @property
    def free(self):
        return self.view.max_kv // BLOCK - sum(self.blocks.values())

    def room_for(self, tokens):
        reserve = int(0.01 * (self.view.max_kv // BLOCK))
        return self.free - math.ceil(tokens / BLOCK) >= reserve

    def take(self, one, tokens, left=0):
        self.tokens[one], self.blocks[one] = tokens, math.ceil(tokens / BLOCK)
        self.left[one] = left

    def grow(self, one, others):
        """Give `one` a token more; the last of `others` go until there is a block."""
        while True:
            needed = math.ceil((self.tokens[one] + 1) / BLOCK)
            if needed <= self.blocks[one] or self.free >= 1:
                self.tokens[one] += 1
                self.blocks[one] = max(needed, self.blocks[one])
                return True
            victim = others.pop() if others else one
            self.forget(victim)
            self.view.preempted.append(victim)
            if victim is one:
                return False


def by_arrival(requests):
    return sorted(requests, key=lambda one: one.row)


def vllm(view):
    books = Books(view)
    queue, kept = by_arrival(view.active), 0
    while queue:
        kept += books.grow(queue.pop(0), queue)
    tokens = seqs = kept
    for one in view.waiting:
        if (
            not books.room_for(one.prompt + 1)
            or tokens + one.prompt > 2560
            or seqs + 1 > view.max_seqs
        ):
            break
        if view.admit_if_it_fits(one):
            books.take(one, one.prompt + 1)
            tokens, seqs = tokens + one.prompt, seqs + 1


def admit_chunks(view, books, queue, tokens, seqs):
    for one in queue:
        chunk = min(one.prompt, 512 - tokens)
        if not books.room_for(one.prompt) or seqs + 1 > view.max_seqs or chunk <= 0:
            break
        if view.admit_if_it_fits(one):
            books.take(one, one.prompt, one.prompt - chunk)
            tokens, seqs = tokens + chunk, seqs + 1
    return tokens


def chunked_vllm(view):
    books = Books(view)
    queue, tokens, seqs = by_arrival(view.active), 0, 0
    while queue and tokens < 512:
        one = queue.pop(0)
        if books.left[one]:
            chunk = min(books.left[one], 512 - tokens)
            books.left[one] -= chunk
            tokens, seqs = tokens + chunk, seqs + 1
        elif books.grow(one, queue):
            tokens, seqs = tokens + 1, seqs + 1
    admit_chunks(view, books, view.waiting, tokens, seqs)


def sarathi(view):
    books = Books(view)
    queue, kept = by_arrival(one for one in view.active if not books.left[one]), 0
    prefills = by_arrival(one for one in view.active if books.left[one])
    while queue:
        kept += books.grow(queue.pop(0), queue)
    tokens = kept
    for one in prefills:
        chunk = max(0, min(books.left[one], 512 - tokens))
        books.left[one] -= chunk
        tokens += chunk
    admit_chunks(view, books, view.waiting, tokens, kept + len(prefills))


def slai(view):
    books = Books(view)
    margin = 5 if view.kv / view.max_kv < 0.96 else 10
    due = view.now + 0.5 - margin * STEP
    decodes = [one for one in view.active if not books.left[one]]
    prefills = [one for one in view.active if books.left[one]]
    for one in decodes:
        books.due.setdefault(one, due)
    decodes.sort(key=lambda one: (books.due[one], one.row))
    served = [one for one in decodes if books.due[one] <= view.now]
    tokens = len(served)
    for one in prefills:
        chunk = max(0, min(books.left[one], 512 - tokens))
        books.left[one] -= chunk
        tokens += chunk
    queue = sorted(view.waiting, key=lambda one: (one.prompt, one.row))
    tokens = admit_chunks(view, books, queue, tokens, len(view.active))
    others = [one for one in decodes if one not in served]
    served += others[: max(0, 512 - tokens)]
    for one in served:
        books.due[one] = due
    view.held += [one for one in decodes if one not in served]


POLICIES = {
    "fifo": greedily(lambda one, view: 0),
    "edf": greedily(lambda one, view: one.deadline),
    "least_laxity_first": greedily(
        lambda one, view: (one.deadline - view.now - one.estimate, one.deadline)
    ),
    "estimated_service_time_first": greedily(lambda one, view: (one.estimate, one.deadline)),
    "weighted_fair_share": greedily(fair_share),
    "kv_constrained_online": kv_constrained,
    "vllm_faithful": vllm,
    "vllm_chunked_prefill_faithful": chunked_vllm,
    "sarathi_faithful": sarathi,
    "slai_faithful": slai,
    "admission_control": greedily(
        lambda one, view: (view.laxity(one), one.estimate * STEP, one.deadline)
    ),
    "vllm_style_token_budget": token_budget,
    "scorpio_style_slo_guard": scorpio,
}


def simulate(policy, requests, *, max_seqs=64, max_kv=131_072, drain=50_000):
    """Return the requests as they end up, the steps taken, and the start of the last step."""
    everybody = [
        Request(row, *values)
        for row, values in enumerate(
            zip(
                requests.arrival_time.tolist(),
                requests.prompt_len.tolist(),
                requests.output_len.tolist(),
                requests.predicted_output_tokens.tolist(),
                requests.deadline.tolist(),
                strict=True,
            )
        )
    ]
    coming, waiting, active, memory = list(everybody), [], [], {}
    step = taken = drained = 0
    while True:
        now = step * STEP
        taken += 1
        while coming and coming[0].arrival <= now:
            waiting.append(coming.pop(0))
        view = View(now, list(waiting), list(active), max_seqs, max_kv, memory)
        POLICIES[policy](view)
        for one in view.preempted:
            active.remove(one)
            waiting.insert(0, one)
            one.produced, one.admitted, one.first = 0, math.nan, math.nan
            one.preemptions += 1
        for one in view.admitted:
            waiting.remove(one)
            active.append(one)
            one.admitted = now
        for one in list(active):
            if one in view.held:
                continue
            one.produced += 1
            if one.produced == 1:
                one.first = (step + 1) * STEP
            if one.produced == one.output:
                one.last = (step + 1) * STEP
                active.remove(one)
        drained += not coming
        if not coming and ((not waiting and not active) or drained >= drain):
            return everybody, taken, now
        if not waiting and not active:
            step = max(step, int(coming[0].arrival / STEP) - 1)
        step += 1
