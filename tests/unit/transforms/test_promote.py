"""promote: first states that take many equations."""

from __future__ import annotations

from recurra.compiler import pipeline
from recurra.ir.graph_parser import parse
from recurra.transforms.iteration_domains.promote_domains import PROMOTE_DOMAINS


def test_a_first_state_of_many_equations_is_in_the_loop() -> None:
    many = 1200
    lines = [
        "dims t<T",
        "x[t<T]: f32[] = uniform(id=1, counter=(t,))",
        "a0: f32[] = tanh(x[0])",
        *(f"a{k}: f32[] = sin(a{k - 1})" for k in range(1, many)),
        f"h[t<T]: f32[] = merge(a{many - 1}, b, when=(t == 0, t >= 1))",
        "b[1<=t<T]: f32[] = mul(x, h[t-1])",
        "return h",
    ]
    graph = parse("\n".join(lines))
    new = PROMOTE_DOMAINS.run(graph, pipeline.compile_context({"T": 3}))
    assert all("t" in n.domain for n in new.nodes.values())
