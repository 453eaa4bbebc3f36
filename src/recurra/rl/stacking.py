"""Frame stacking as reads of the past: each observation is stored once, and stacked in regions.

frames(o, 4)[t]  =  o[max(t-3, 0)], o[max(t-2, 0)], o[max(t-1, 0)], o[t]
"""

from __future__ import annotations

from recurra.frontend.dims import Index, maximum, wrap
from recurra.frontend.functions import stack, where
from recurra.frontend.tensor import RecurrentTensor


def frames(
    o: RecurrentTensor, count: int, starts: RecurrentTensor | None = None
) -> RecurrentTensor:
    """The last `count` values along the last dim of `o`, the oldest first: [count, *shape].

    Before the first point, the first one is repeated. `starts` (bool[]) is true where an episode
    begins: older points are not seen there either. With autoreset that is where d was true.
    """
    last = o.domain.ranges[-1]

    def back(tensor: RecurrentTensor, index: int) -> RecurrentTensor:
        past = maximum(Index(last.sym) - index, wrap(last.lo))
        return tensor[tuple(past if r == last else Index(r.sym) for r in tensor.domain)]

    stacked = [o]
    for k in range(1, count):
        older = back(o, k)
        if starts is not None:
            begun = back(starts, 0)
            for j in range(1, k):
                begun = begun | back(starts, j)
            older = where(begun, stacked[-1], older)
        stacked.append(older)
    return stack(stacked[::-1])
