"""Names of NumPy, torch and JAX that do not exist here, each with the line to write instead.

    x.unsqueeze(0)      hint: write x.reshape(1, *x.shape)

Operators that only have another name here are looked up in the table of operators.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from types import MappingProxyType

from recurra.analysis.argument_checks import by_word
from recurra.errors import NoSuchName, reraise_property_error
from recurra.frontend.operator_table import OPERATORS, Operator
from recurra.support.renamed_names import warn_renamed

_STEP = 'p = rc.nn.Parameter(rc.zeros(3), domain=(t,), name="p"); p.sum().backward(); '

ALIKE = (  # names, and the line that does the same here
    (
        "A2C PPO",
        'from recurra.rl.recipes import Ppo; ctx, bounds = Ppo(env="CartPole-v1").program()',
    ),
    (
        "advantages gae GAE lambda_return td_lambda",
        "done = x > 2.0; adv = rc.like(x.type, domain=(t,)); adv[T - 1] = x[T - 1]; "
        "adv[t] = x + 0.99 * 0.95 * rc.where(done, 0.0, adv[t + 1])",
    ),
    ("array Tensor tensor", "rc.constant([1.0, 2.0])"),
    ("astype float to", 'x.cast("f32")'),
    ("Attention scaled_dot_product_attention", "(x @ y.T / 3.0**0.5).softmax(axis=-1) @ y"),
    ("batch_norm BatchNorm BatchNorm1d BatchNorm2d", "rc.rl.normalize(x, over=(t,))"),
    ("BCELoss binary_cross_entropy", "-(y * x.log() + (1.0 - y) * (1.0 - x).log()).mean()"),
    (
        "BCEWithLogitsLoss binary_cross_entropy_with_logits",
        "(rc.maximum(x, 0.0) - x * y + ((-x.abs()).exp() + 1.0).log()).mean()",
    ),
    ("block_until_ready run", "ctx.run({T: 3})"),
    (
        "Buffer PrioritizedReplayBuffer replay_buffer ReplayBuffer",
        "x[0 : t + 1].take(rc.randint(0, t + 1, (t,), (8,)), axis=0)",
    ),
    ("categorical Categorical", "rc.nn.Categorical(x.index(0)).sample()"),
    ("chunk split", "x.cut(0, 1, axis=0)"),
    ("clip_grad_norm_", f"{_STEP}rc.optim.clip_grad_norm([p], 1.0)"),
    ("clone contiguous copy Identity real values", "x"),
    ("collect Rollout rollout RolloutBuffer", "x[0:T]"),
    ("bincount", 'rc.einsum("ab,abc->c", x, i.one_hot(2))'),
    ("index_add scatter_add segment_sum", 'x.scatter(axis=0, index=i, value=y, reduce="add")'),
    ("scatter_min segment_min", 'x.scatter(axis=0, index=i, value=y, reduce="min")'),
    ("scatter_max segment_max", 'x.scatter(axis=0, index=i, value=y, reduce="max")'),
    ("if_ select_n", "rc.where(x > 0.0, x, 0.0)"),
    ("eval train", "net(x)"),
    ("Conv1d conv1d", "rc.nn.Conv2d(2, 4, (1, 3), domain=())(x.reshape(2, 1, 3))"),
    ("cross_entropy CrossEntropyLoss", "-x.log_softmax(axis=-1).take(k, axis=-1)"),
    ("cumlogsumexp logcumsumexp", "x[0 : t + 1].logsumexp(axis=0)"),
    ("cuda device is_cuda", 'ctx.compile({T: 3}, backend="jax")'),
    ("DataLoader Dataset", 'data = rc.input(rc.f32[3], (t,), name="data")'),
    ("DDPG DDQN DQN QNetwork SAC TD3", "q = rc.nn.MLP([3, 16, 2], domain=(t,)); target = q.copy()"),
    ("debug item numpy print save sink tolist", "rc.output(x=x)"),
    ("Dense linear", "rc.nn.Linear(3, 2, domain=())(x)"),
    ("dim ndim ndimension", "len(x.shape)"),
    ("Dim dims symbol vmap", 'rc.Context(dims="b t")'),
    ("discount discounted_returns returns", "x[t:T].discounted_sum(0.99)"),
    ("dot mm mv", "x @ x.T"),
    ("dropout Dropout2d", "rc.nn.Dropout(0.1)(x)"),
    ("ELU elu", "rc.where(x > 0.0, x, x.exp() - 1.0)"),
    (
        "epsilon_greedy EpsilonGreedy",
        "rc.where(rc.bernoulli(0.1, (t,)), rc.randint(0, 3, (t,)), x.index(0).argmax())",
    ),
    ("expand_dims newaxis unsqueeze", "x.reshape(1, *x.shape)"),
    ("flatten ravel", "x.reshape(-1)"),
    (
        "associative_scan for_loop foreach fori_loop scan while_loop",
        "h = rc.like(x.type, domain=(t,)); h[0] = x[0]; h[t] = h[t - 1] + x[t]",
    ),
    ("func udf", "rc.call(np.sqrt, rc.f32[2, 3], x.square())"),
    ("grad retain_grad value_and_grad", "x[0:T].sum().backward(wrt=[x])"),
    (
        "GroupNorm InstanceNorm2d",
        "(x - x.mean(axis=-1, keepdims=True)) / (x.var(axis=-1, keepdims=True) + 1e-5).sqrt()"
        "  # a group is an axis: x.reshape(2, -1)",
    ),
    ("H mT t", "x.T"),
    ("Hardtanh hardtanh", "x.clip(-1.0, 1.0)"),
    (
        "huber_loss HuberLoss smooth_l1_loss SmoothL1Loss",
        "rc.where((x - y).abs() < 1.0, 0.5 * (x - y).square(), (x - y).abs() - 0.5).mean()",
    ),
    ("inv inverse pinv", "rc.jax_fn(jnp.linalg.inv)(x @ x.T)"),
    ("jit Program", "ctx.compile({T: 3})"),
    ("key manual_seed PRNGKey seed set_seed", "ctx.run({T: 3}, seed=7)"),
    ("kl_div KLDivLoss", "(y * (y.log() - x)).sum()"),
    ("linalg lstsq solve", "rc.jax_fn(jnp.linalg.solve)(x @ x.T, x)"),
    ("LogSigmoid logsigmoid", "-(rc.maximum(-x, 0.0) + ((-x.abs()).exp() + 1.0).log())"),
    ("l1_loss L1Loss", "(x - 1.0).abs().mean()"),
    ("leaky_relu LeakyReLU", "rc.maximum(x, 0.01 * x)"),
    ("make make_env make_vec SyncVectorEnv VecEnv", 'rc.rl.env.make("CartPole-v1")'),
    ("mse_loss MSELoss", "(x - 1.0).square().mean()"),
    ("nelement numel", "math.prod(x.shape)"),
    ("nll_loss NLLLoss", "-x.take(k, axis=-1)"),
    ("data no_grad stop_gradient", "x.detach()"),
    (
        "placeholder RecurrentTensor",
        "h = rc.like(rc.f32[3], domain=(t,)); h[0] = 0.0; h[t] = h[t - 1] + 1.0",
    ),
    (
        "REINFORCE reinforce",
        "from recurra.rl.recipes import Reinforce; "
        'ctx, bounds = Reinforce(env="CartPole-v1").program()',
    ),
    ("shape size", "x.shape"),
    ("Softplus softplus", "rc.maximum(x, 0.0) + ((-x.abs()).exp() + 1.0).log()"),
    ("view view_as", "x.reshape(3, 2)"),
)
WORDS = {
    **by_word(ALIKE),
    **{
        name: f"import optax; {_STEP}rc.optim.from_optax(optax.{name.lower()}(1e-3), [p]).step()"
        for name in ("Adafactor", "Adagrad", "Lion", "NAdam")
    },
    "Actor": (
        'env = rc.rl.env.make("CartPole-v1"); '
        "pi = rc.nn.DNNBuilder(domain=(t,)).from_env(env, hidden=[8]).build()"
    ),
    "AdaptiveAvgPool2d": "x.mean(axis=(-2, -1))",
    "at": "rc.where(x > 0.0, 1.0, x)",
    "Bernoulli": "rc.bernoulli(x.sigmoid())",
    "bfloat16": 'x.cast("bf16")',
    "bmm": 'rc.einsum("ab,bc->ac", x, x.T)',
    "bool": 'x.cast("bool")',
    "ceil": "-((-x).floor())",
    "choice": "x.take(rc.randint(0, 2, (t,)), axis=0)",
    "clamp_max": "x.clip(hi=1.0)",
    "clamp_min": "x.clip(lo=0.0)",
    "CosineAnnealingLR": "0.05 * ((rc.value(t) / rc.value(T) * math.pi).cos() + 1.0)",
    "cpu": 'ctx.compile({T: 3}, backend="numpy")',
    "Critic": "rc.nn.MLP([3, 16, 1], domain=(t,))",
    "diff": "x.cut(1, 3, axis=1) - x.cut(0, 2, axis=1)",
    "DomainError": "from recurra.errors import DomainError",
    "double": 'x.cast("f64")',
    "embedding": "rc.nn.Embedding(3, 2, domain=())(i)",
    "empty": "rc.zeros((2, 3))",
    "load_state_dict": 'net.load(torch.nn.Linear(3, 2).state_dict(), layout="torch")',
    "named_parameters": "dict(net.named_params())",
    "parameters": "net.params",
    "ShapeError": "from recurra.errors import ShapeError",
    "state_dict": "rc.output(**dict(net.named_params()))",
    "expand_as": "x.broadcast_to((2, 3))",
    "exp2": "2.0**x",
    "expm1": "x.exp() - 1.0",
    "ExponentialLR": "0.1 * 0.99**t",
    "eye": 'rc.constant(np.eye(3, dtype="f4"))',
    "float16": "rc.f16",
    "float32": "rc.f32",
    "float64": "rc.f64",
    "functional": "x.relu()",
    "GELU": "x.gelu()",
    "half": 'x.cast("f16")',
    "hstack": "rc.concat([x, y], axis=1)",
    "indices": "x.argmax(axis=-1)",
    "inf": "math.inf",
    "init": "rc.nn.initializers.normal()((3, 2))",
    "int": 'x.cast("i32")',
    "int32": "rc.i32",
    "int64": "rc.i64",
    "isnan": "x != x",
    "layer_norm": "rc.nn.LayerNorm(3, domain=())(x)",
    "linspace": 'rc.constant(np.linspace(0.0, 1.0, 3, dtype="f4"))',
    "log1p": "(x + 1.0).log()",
    "logaddexp": "rc.stack([x, y]).logsumexp(axis=0)",
    "log2": "x.log() / math.log(2.0)",
    "LogSoftmax": "x.log_softmax(axis=-1)",
    "long": 'x.cast("i64")',
    "lr_scheduler": "1e-3 * 0.99**t",
    "masked_fill": "rc.where(x > 0.0, 0.0, x)",
    "Mish": "x * (rc.maximum(x, 0.0) + ((-x.abs()).exp() + 1.0).log()).tanh()",
    "ModuleDict": '{"head": rc.nn.Linear(3, 3, domain=())}',
    "ModuleList": "[rc.nn.Linear(3, 3, domain=()) for _ in range(2)]",
    "n_step": "x[t : rc.min(t + 5, T)].discounted_sum(0.99)",
    "nan": "math.nan",
    "nonzero": "x != 0.0",
    "Normal": "rc.nn.Gaussian(x, x.exp())",
    "ones_like": "rc.ones(x.shape)",
    "pad": "rc.concat([x, rc.zeros((2, 1))], axis=1)",
    "ParameterList": '[rc.nn.Parameter(rc.zeros(3), domain=(t,), name=f"p{k}") for k in range(2)]',
    "pi": "math.pi",
    "PReLU": "rc.maximum(x, 0.25 * x)",
    "reciprocal": "1.0 / x",
    "requires_grad": 'rc.nn.Parameter(rc.zeros(3), domain=(), name="p")',
    "rsqrt": "x.sqrt() ** -1.0",
    "sign": '(x > 0.0).cast("f32") - (x < 0.0).cast("f32")',
    "soft_update": (
        "net = rc.nn.Linear(3, 2, domain=(t,)); "
        "target = net.copy(); "
        "[q.update(0.99 * q + 0.01 * p) for q, p in zip(target.params, net.params)]"
    ),
    "Softmax": "x.softmax(axis=-1)",
    "softmin": "(-x).softmax(axis=-1)",
    "spaces": 'rc.rl.env.make("CartPole-v1").observation_space',
    "StepLR": "0.1 * 0.5 ** (t // 10)",
    "swapaxes": "x.transpose(1, 0)",
    "tan": "x.sin() / x.cos()",
    "TempoContext": 'rc.Context(dims="t")',
    "unbind": "x.index(0, axis=0)",
    "Unflatten": "x.reshape(2, 3, 1)",
    "Variable": 'rc.nn.Parameter(rc.zeros(3), domain=(t,), name="p")',
    "vstack": "rc.concat([x, y], axis=0)",
    "zero_grad": "x[0:T].sum().backward(wrt=[x])  # gradients are never summed up",
    "zeros_like": "rc.zeros(x.shape)",
}


OF_MODULES = by_word(  # names of torch's modules that tensors do not have, or with another meaning
    (
        ("to cuda", 'ctx.compile({T: 3}, backend="jax")  # a program is made for a device'),
        ("train eval", "net(x)  # a module has no mode: what differs is written twice"),
        ("apply children modules named_modules", "dict(net.named_params())"),
        (
            "requires_grad requires_grad_",
            "net(x).sum().backward(wrt=[net.weight])  # what is not named has no gradient",
        ),
        ("bfloat16 double float half", 'net(x).cast("f16")'),
        ("register_buffer", "rc.constant([1.0, 2.0])"),
        (
            "log_prob sample entropy",
            "rc.nn.Categorical(net(x)).sample()  # of a policy: pi = dnn(o), pi.log_prob(a)",
        ),
    )
)
"""The line to write instead of each."""


def hint(
    name: str, known: Iterable[str] = (), own: Mapping[str, str] = MappingProxyType({})
) -> str:
    """The hint for a name that does not exist here, such as unsqueeze, np.sum or torch.cat.

    Args:
        known: the names that exist, one of which may be meant.
        own: the lines for names with a particular meaning in this place.
    """
    word = name.rpartition(".")[2]
    if word in own:
        return f"write {own[word]}"
    exact = (o for o in OPERATORS.values() if name in (o.numpy, o.torch))
    near = (o for o in OPERATORS.values() if word in _last_words(o))
    found = next(exact, None) or next(near, None)
    line = found.ours if found else WORDS.get(word)
    alike = {x.lower(): x for x in known if not x.startswith("_")}
    if line is None and word.endswith("_") and not word.startswith("_"):
        return "nothing is changed in place: write x = x + 1.0"
    if line is None and (close := get_close_matches(word.lower(), alike, 1, 0.8)):
        return f"did you mean {alike[close[0]]}?"
    return (
        f"write {line}"
        if line
        else "docs/operators.md lists what there is; rc.jax_fn(f)(x) is any function f of JAX"
    )


def unknown(
    what: str, name: str, known: Iterable[str] = (), own: Mapping[str, str] = MappingProxyType({})
) -> NoSuchName:
    """The error for a name that a tensor, or a module of the package, does not have.

    Args:
        known: the names that it has.
        own: the lines for names with a particular meaning there.
    """
    return NoSuchName.at_user_line(
        f"{what} has no {name!r}",
        facts=f"{name} is a word of another library, or of none",
        hint=hint(name, known, own),
    )


def no_attribute(
    what: str, owner: object, name: str, own: Mapping[str, str] = MappingProxyType({})
) -> AttributeError:
    """The error for a name that an object of the package, such as "the module" Linear, lacks."""
    kind = type(owner)
    if name.startswith("_"):  # Python looks these up
        return AttributeError(f"{kind.__name__} has no attribute {name!r}")
    reraise_property_error(owner, name)
    return unknown(f"{what} {kind.__name__}", name, dir(kind), own)


def only(
    module: str,
    names: Collection[str],
    renamed: Mapping[str, str] | None = None,
    home: str = "",
    inside: Mapping[str, str] = MappingProxyType({}),
) -> Callable[[str], object]:
    """Return a `__getattr__` for a module that has these names and no others.

    Old names in `renamed` return the object of the new name, in the module `home`, with a
    DeprecationWarning.

    Args:
        inside: the lines for names that submodules of this module have.
    """

    def find(name: str) -> object:
        if name.startswith("_"):  # Python looks these up
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        if renamed is None or name not in renamed:
            raise unknown(module, name, names, {} if name in WORDS else inside)
        now = renamed[name]
        warn_renamed(f"{module}.{name}", f"{module}.{now}")
        return getattr(importlib.import_module(home), now)

    return find


def _last_words(operator: Operator) -> set[str]:
    """The last parts of the operator's names: sum of x.sum, np.sum and torch.sum."""
    return {x.rpartition(".")[2] for x in (operator.key, operator.numpy, operator.torch)}
