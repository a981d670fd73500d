"""The parts that each newer mixer was published with, as arguments of a model."""

MALA = {"gate": True, "lepe": 5, "rope": "heads", "cpe": True}
PUBLISHED_PARTS = {
    "mala": MALA,
    "rala": MALA,
    "pola": {"gate": True, "lepe": 5, "mixer_args": {"lepe_shared": True}},
    "mhla": {"lepe": 5},  # with the divisor of the paper: the published one needs a number of every token
    "agent": {"lepe": 3},
    "mila": {"gate": "silu", "lepe": 3, "rope": "all", "cpe": "both"},
    "nala": {"gate": "silu", "out_norm": True, "lepe": 5, "rope": "heads", "cpe": "both"},
    "vit3": {"rope": "all", "cpe": True},
}
