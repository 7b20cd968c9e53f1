"""The agreement of the ranks that share the heads of a token. Without it, ranks that make different calls would wait for
each other, or gather sums that do not belong together.

A call with norms over several ranks first exchanges what the ranks must have in common, or why a rank refuses the call. So
either all ranks go on to the all-gather of the sums, or all of them raise an error.

- On the CPU, every call exchanges a digest by an all-gather. A cache would have to miss on all ranks in the same calls,
  which ranks that differ do not ensure.
- On CUDA, where an exchange in every call would wait for the GPU, the ranks exchange texts through the store of the group,
  once for each set of options and shapes. The store involves no stream, so this is also valid while a graph is captured.
  If another rank has nothing to exchange, it does not mistake the text for sums, and the store's timeout ends the exchange.
"""

import functools
import hashlib
import json
import threading
import weakref

import torch

from .._errors import Error
from .._norms import Norm, find_ranks

_STATES = weakref.WeakKeyDictionary()  # by group: a _State


class _State:
    """The calls that the ranks of a group have agreed on, and the number of exchanges through its store."""

    def __init__(self):
        self.agreed, self.exchanges = set(), 0


class _Here(threading.local):
    count = 0


_here = _Here()


def count():
    """Returns the number of agreements that this thread has tried to reach."""
    return _here.count


def agree(backward, spec, srcs, weights, wanted, refusal):
    """Raises an error on all ranks of each group of the norms if they do not make the same call.

    Arguments:
        wanted: for each tensor, whether a backward of this call will gather sums for it.
        refusal: the exception with which this rank refuses the call, or None. It is raised after the exchange.
    """
    calls = {}
    for settings, x, weight, needs_gradient in zip(spec.norms, srcs, weights, wanted):
        if settings.group:
            _, key = calls.setdefault(settings.group, (settings.index, [backward, spec.layout, spec.rounding]))
            key.append((settings, tuple(x.shape), x.dtype, None if weight is None else weight.dtype, needs_gradient))
    calls = {group: (i, tuple(key)) for group, (i, key) in calls.items()}
    refusal = _agree_in_all(calls, srcs[0].is_cuda, refusal)
    if refusal is not None:
        raise refusal


def refuse(norms, on_cuda, refusal):
    """Tells the ranks of the groups of the norms that this rank refuses a call before it gets to agree, and why."""
    calls = {}
    for i, norm in enumerate(norms if isinstance(norms, (list, tuple)) else [norms]):
        try:
            _, _, group = find_ranks(norm, i) if isinstance(norm, Norm) else (1, 0, "")
        except Error:
            continue
        if group:
            calls.setdefault(group, (i, None))
    _agree_in_all(calls, on_cuda, refusal)


def _agree_in_all(calls, on_cuda, refusal):
    """Reaches an agreement in each group. `calls` has {name of a group: (index of its first norm, key)}. The key is None
    if the call is refused early. Returns the exception that this rank must raise, or None."""
    _here.count += 1
    for group in sorted(calls):  # in one order on all ranks, whatever the order of the norms
        i, key = calls[group]
        try:
            _agree_in(group, "norms[%d].process_group" % i, key, on_cuda, refusal)
        except Error as error:
            refusal = refusal or error  # the next group must hear of it
    return refusal


def _agree_in(group, name, key, on_cuda, refusal):
    try:
        group = torch.distributed.distributed_c10d._resolve_process_group(group)
    except RuntimeError as error:
        raise Error("%s is not a group that exists: %s" % (name, error), name) from None
    state = _STATES.setdefault(group, _State())
    if on_cuda and (key in state.agreed or (key is None and state.agreed)):
        return
    if torch.distributed.get_backend(group) == "fake":  # a dry run, in which nobody else takes part
        return
    if refusal is None:
        text = _describe(key)
    else:
        text = json.dumps({"refusal": [getattr(refusal, "argument", "") or name, str(refusal)]})
    try:
        texts = _exchange_in_store(group, state, text) if on_cuda else _exchange(group, text)
    except RuntimeError as error:
        message = "%s: a rank does not make this call, or has failed: %s"
        raise Error(message % (name, error), name) from error
    _compare([json.loads(each) for each in texts], name)
    if on_cuda:
        state.agreed.add(key)


@functools.lru_cache(maxsize=1024)
def _describe(key):
    """Returns the text that must be the same on all ranks: a JSON object of the arguments and their values."""
    backward, layout, rounding, *normed = key
    facts = {"norms": "those of a backward" if backward else "those of a forward", "rounding": repr(rounding)}
    for settings, shape, dtype, weight, needs_gradient in normed:
        name = "norms[%d]" % settings.index
        facts[name] = "a norm that needs %s gradient" % ("a" if needs_gradient else "no")
        facts["tensors[%d]" % settings.index] = "%s of shape %s (%s)" % (dtype, list(shape), layout)
        facts[name + ".weight"] = "None" if weight is None else "a weight of %s" % weight
        for field in ("eps", "plus_one", "order", "rounding"):
            value = getattr(settings, field)
            facts["%s.%s" % (name, field)] = "None" if value == "" else repr(value)
    return json.dumps(facts)


def _exchange(group, text):
    """Returns the texts of all ranks. It gathers the texts only if the digests differ."""
    own = torch.frombuffer(bytearray(hashlib.sha256(text.encode()).digest()), dtype=torch.uint8)
    digests = torch.empty(group.size() * own.numel(), dtype=torch.uint8)
    torch.distributed.all_gather_into_tensor(digests, own, group=group)
    texts = [text] * group.size()
    if (digests.view(-1, own.numel()) != own).any():
        torch.distributed.all_gather_object(texts, text, group=group)
    return texts


def _exchange_in_store(group, state, text):
    """Returns the texts of all ranks, without a collective."""
    store = torch.distributed.distributed_c10d._get_process_group_store(group)
    if store is None:  # the backend is MPI
        return [text]
    key, own = "trope/%d/%d", state.exchanges
    state.exchanges += 1
    store.set(key % (own, group.rank()), text)
    texts = store.multi_get([key % (own, rank) for rank in range(group.size())])
    if own:  # every rank has read the texts of the exchange before
        store.delete_key(key % (own - 1, group.rank()))
    return [each.decode() for each in texts]


def _compare(ranks, name):
    """Raises an error if the ranks differ, or if one of them refuses the call. `ranks` has the object of each rank."""
    for rank, facts in enumerate(ranks):
        if "refusal" in facts:
            argument, text = facts["refusal"]
            raise Error("rank %d of %s refuses this call: %s" % (rank, name, text), argument)
    for argument in {argument: None for facts in ranks for argument in facts}:
        ranks_with = {}
        for rank, facts in enumerate(ranks):
            ranks_with.setdefault(facts.get(argument, "missing"), []).append(rank)
        if len(ranks_with) > 1:
            each = ["%s on %s" % (value, _ranks(found)) for value, found in ranks_with.items()]
            raise Error("%s differs between the ranks of %s: %s" % (argument, name, ", but ".join(each)), argument)


def _ranks(found):
    return ("rank %d" if len(found) == 1 else "ranks %s") % (found[0] if len(found) == 1 else ", ".join(map(str, found)))
