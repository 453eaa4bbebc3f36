"""Ten small programs without host calls: what a run costs beside one call of the form by hand."""

NAMES = (
    "three_equations",
    "recurrence",
    "gae",
    "returns",
    "moving_average",
    "mlp_gradient",
    "adam",
    "viterbi",
    "normalization",
    "two_way_filter",
)
