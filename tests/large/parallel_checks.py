"""Checks of `parallelize` that run in several processes at once: each gets the process's rank and their number."""

import pytest
import timm
import torch
import torch.distributed as dist

from inline_attention.large.gradients import stream_train
from inline_attention.large.parallelize import SequenceParallel, parallelize
from inline_attention.layers.local_residual import LocalResidual

from ..published_parts import PUBLISHED_PARTS

SMALL = {
    "inline_deit_nano": {"embed_dim": 16, "depth": 2, "num_heads": 2, "patch_size": 4},
    "inline_pvt_nano": {"embed_dims": (8, 8, 16, 16), "num_heads": (1, 2, 2, 4), "depths": (1, 1, 2, 1), "patch_size": 1},
    "inline_swin_nano": {
        "embed_dim": 8,
        "num_heads": (1, 2, 2, 4),
        "depths": (1, 1, 1, 1),
        "patch_size": 1,
        "inline_depths": 1,
    },
}
IMAGE = (29, 19)
"""Odd: 8 x 5 tokens for DeiT, and 29, 15, 8 and 4 rows for the others, all padded."""


def model_of(name: str, dtype=torch.float64, img_size=IMAGE, seed: int = 0, **options):
    """A small model with weights large enough that every part of it matters."""
    torch.manual_seed(seed)
    options = {**SMALL[name], "img_size": img_size, "num_classes": 5, **options}
    model = timm.create_model(name, **options).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model


def images(dtype=torch.float64, size=IMAGE, seed: int = 1):
    torch.manual_seed(seed)
    return torch.randn(2, 3, *size, dtype=dtype)


def own_part(parallel: SequenceParallel, features):
    """This process's part of what the plain model gives."""
    first, last = parallel.rows(IMAGE[0])
    if features.ndim == 4:
        return features[:, :, first:last]
    prefix = parallel.model.num_prefix_tokens
    width = -(-IMAGE[1] // parallel.model.feature_info[-1]["reduction"])
    return torch.cat([features[:, :prefix], features[:, prefix + first * width : prefix + last * width]], 1)


def close(ours, theirs, tolerance: float) -> None:
    """Equal to a share of the largest value."""
    torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance * float(theirs.abs().max()))


def the_same_everywhere(tensor, group=None) -> None:
    """Bit by bit."""
    gathered = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(gathered, tensor.detach(), group=group)
    assert all(torch.equal(other, gathered[0]) for other in gathered)


VARIANTS = [
    (name, {"kernel": kernel, "local": local})
    for name in ("inline_deit_nano", "inline_pvt_nano")
    for kernel in ("identity", "relu")
    for local in (True, False)
] + [
    ("inline_deit_nano", {"global_pool": "avg"}),
    ("inline_deit_nano", {"rope": "heads"}),
    ("inline_pvt_nano", {"class_token": True, "rope": "all"}),
    ("inline_swin_nano", {}),
    ("inline_deit_nano", {"mixer": "efficient", "rope": "heads"}),  # two sweeps, the first with a running maximum
    ("inline_pvt_nano", {"mixer": "enhanced", "class_token": True}),  # neighbours of the MLP too
]


@torch.no_grad()
def forward(rank: int, processes: int) -> None:
    """Classes and features are the plain model's."""
    for name, options in VARIANTS:
        for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
            model, x = model_of(name, dtype, **options), images(dtype)
            parallel = parallelize(model)
            classes, features = parallel(x), parallel.forward_features(x)
            close(classes, model(x), tolerance)
            the_same_everywhere(classes)
            close(features, own_part(parallel, model.forward_features(x)), tolerance)
            assert parallel.traffic.gradients == 0


@torch.no_grad()
def other_sizes(rank: int, processes: int) -> None:
    """Positions resampled, rows that come out even and that do not, one row a process, landscape and portrait."""
    for name, sizes in {
        "inline_deit_nano": [(16, 9), (17, 40), (32, 32), (45, 8)],
        "inline_pvt_nano": [(25, 9), (32, 40), (33, 8), (64, 11)],
    }.items():
        model = model_of(name, torch.float32)
        parallel = parallelize(model)
        for size in sizes:
            x = images(torch.float32, size)
            close(parallel(x), model(x), 1e-5)


def split(rank: int, processes: int) -> None:
    """Rows are all given out, in order, as evenly as can be; too few are an error that all processes see."""
    for name, height, last in (("inline_deit_nano", 29, 8), ("inline_deit_nano", 37, 10), ("inline_pvt_nano", 49, 7)):
        first, stop = parallelize(model_of(name)).rows(height)
        shares = torch.zeros(processes, 2, dtype=torch.int64)
        shares[rank] = torch.tensor([first, stop])
        dist.all_reduce(shares)
        starts, stops = shares.unbind(1)
        assert starts[0] == 0
        assert stops[-1] == last
        assert starts[1:].tolist() == stops[:-1].tolist()
        counts = stops - starts
        assert counts.max() - counts.min() <= 1
    few = 4 * (processes - 1)
    with pytest.raises(
        ValueError, match=f"{processes} processes cannot share the {processes - 1} rows that {few} pixels have in the last map"
    ):
        parallelize(model_of("inline_deit_nano")).rows(few)


def gradients(rank: int, processes: int) -> None:
    """Of all parameters, over two backward passes that add up, and of the images."""
    for name, options in VARIANTS:
        plain, model = model_of(name, **options), model_of(name, **options)
        parallel = parallelize(model)
        for seed in (1, 2):
            theirs, ours = images(seed=seed).requires_grad_(), images(seed=seed).requires_grad_()
            plain(theirs).logsumexp(1).sum().backward()
            parallel(ours).logsumexp(1).sum().backward()
            close(ours.grad, theirs.grad, 1e-9)
        _equal_gradients(model, plain)


def newer_mixers(rank: int, processes: int) -> None:
    """Classes and gradients of each, with the parts that it was published with: blocks, agents and halos across processes."""
    for mixer, parts in PUBLISHED_PARTS.items():
        options = {"mixer": mixer, "depth": 2, **parts}
        plain, model = model_of("inline_deit_nano", **options), model_of("inline_deit_nano", **options)
        theirs, ours = images().requires_grad_(), images().requires_grad_()
        expected, found = plain(theirs), parallelize(model)(ours)
        close(found.detach(), expected.detach(), 1e-10)
        expected.logsumexp(1).sum().backward()
        found.logsumexp(1).sum().backward()
        close(ours.grad, theirs.grad, 1e-9)
        _equal_gradients(model, plain)


def dense_gradients(rank: int, processes: int) -> None:
    """A loss of each process's own features: gradients of the mean of these losses. The classifier gets none."""
    for name in ("inline_deit_nano", "inline_pvt_nano"):
        plain, model = model_of(name), model_of(name)
        parallel = parallelize(model)
        features = plain.forward_features(images())
        prefix = plain.num_prefix_tokens
        maps = features[:, prefix:] if prefix else features
        (maps**2).sum().div(processes).backward()
        mine = parallel.forward_features(images())
        ((mine[:, prefix:] if prefix else mine) ** 2).sum().backward()
        assert model.head.weight.grad is None
        _equal_gradients(model, plain)


def _equal_gradients(model, plain, group=None) -> None:
    largest = max(float(p.grad.abs().max()) for p in plain.parameters() if p.grad is not None)
    found = []
    for (name, ours), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
        if theirs.grad is None:
            assert ours.grad is None, name
            continue
        scale = max(float(theirs.grad.abs().max()), 1e-6 * largest)  # some are zero but for rounding
        assert float((ours.grad - theirs.grad).abs().max()) <= 1e-9 * scale, name
        found.append(ours.grad.flatten())
    the_same_everywhere(torch.cat(found), group)


def partly_frozen(rank: int, processes: int) -> None:
    """Only the last stage learns; then only the classifier; then no one asks for gradients."""
    plain, model = model_of("inline_pvt_nano"), model_of("inline_pvt_nano")
    parallel = parallelize(model)
    for kept in (("stages.3", "head"), ("head",)):
        for one in (plain, model):
            one.zero_grad()
            for name, parameter in one.named_parameters():
                parameter.requires_grad_(name.startswith(kept))
        plain(images()).logsumexp(1).sum().backward()
        parallel(images()).logsumexp(1).sum().backward()
        _equal_gradients(model, plain)
    model.requires_grad_(False)
    assert not parallel(images()).requires_grad


def checkpointed(rank: int, processes: int) -> None:
    """Blocks computed again during backward send their messages again, in the same order."""
    for name in ("inline_deit_nano", "inline_pvt_nano"):
        plain, model = model_of(name, drop_path_rate=0.3).train(), model_of(name, drop_path_rate=0.3).train()
        model.set_grad_checkpointing()
        parallel = parallelize(model)
        for one in (plain, parallel):
            torch.manual_seed(3)
            one(images()).logsumexp(1).sum().backward()
        _equal_gradients(model, plain)


def training(rank: int, processes: int) -> None:
    """Three steps of AdamW with drop path: every process ends where one process alone does."""
    for name in ("inline_deit_nano", "inline_pvt_nano"):
        ends = []
        for plain in (True, False):
            model = model_of(name, drop_path_rate=0.5).train()
            one = model if plain else parallelize(model)
            optimizer = torch.optim.AdamW(one.parameters(), lr=1e-2)
            torch.manual_seed(7)
            for _ in range(3):
                x, labels = torch.randn(4, 3, *IMAGE, dtype=torch.float64), torch.randint(5, (4,))
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(one(x), labels).backward()
                optimizer.step()
            ends.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
        the_same_everywhere(ends[1])
        assert float((ends[1] - ends[0]).abs().max()) < 1e-6


def streamed_gradients(rank: int, processes: int) -> None:
    """Bands within a process, processes within an image: the plain gradients, also with drop path and a frozen part."""
    for name, options in VARIANTS[-6:]:
        plain, model = (model_of(name, drop_path_rate=0.3, **options).train() for _ in range(2))
        parallel = parallelize(model)
        for one in (plain, model):
            one.stages[0].blocks[0].mlp.requires_grad_(False)
        for seed in (1, 2):
            x = images(seed=seed)[:1]
            torch.manual_seed(seed)
            plain(x).logsumexp(1).sum().backward()
            torch.manual_seed(seed)
            stream_train(parallel, x, tokens=4 + seed, keep=seed).logsumexp(1).sum().backward()
        _equal_gradients(model, plain)
    with pytest.raises(ValueError, match="take no mask"):
        stream_train(parallel, x, mask=torch.ones(*IMAGE, dtype=torch.bool))
    few = 4 * (processes - 1)
    with pytest.raises(ValueError, match=f"{processes} processes cannot share"):
        stream_train(parallelize(model_of("inline_deit_nano")), images(size=(few, 8))[:1])


def traffic(rank: int, processes: int) -> None:
    """Twice as high: nothing more is sent. Twice as wide: twice the halo."""
    for name, options in (("inline_deit_nano", {"img_size": 32}), ("inline_pvt_nano", {"img_size": 32})):
        model = model_of(name, torch.float32, **options)
        parallel = parallelize(model)
        counted = {}
        for size in ((32, 32), (64, 32), (32, 64)):
            parallel.traffic.reset()
            parallel(images(torch.float32, size)).sum().backward()
            counted[size] = dict(vars(parallel.traffic))
        once, higher, wider = counted.values()
        assert higher == once
        assert wider == {**once, "halo": 2 * once["halo"]}
        neighbours = (rank > 0) + (rank < processes - 1)
        blocks = [(stage, block.mixer) for stage in model.stages for block in stage.blocks]
        width = {stage: 32 // 4 if name == "inline_deit_nano" else 32 >> n for n, stage in enumerate(model.stages)}
        assert once == {  # two images, four bytes a number; forward and backward alike
            "summaries": 2 * 2 * 4 * sum(1 + 3 * mixer.dim + mixer.dim * mixer.head_dim for _, mixer in blocks),
            "halo": 2 * 2 * 4 * neighbours * sum(width[stage] * mixer.dim for stage, mixer in blocks),
            "pooling": 0 if name == "inline_deit_nano" else 2 * 2 * 4 * model.num_features,
            "gradients": 4 * sum(parameter.numel() for parameter in model.parameters()),
        }
        parallel.traffic.reset()
        with torch.no_grad():
            parallel(images(torch.float32, (32, 32)))
        forward = dict(vars(parallel.traffic))
        assert forward == {**{kind: size // 2 for kind, size in once.items()}, "gradients": 0}


def some_of_the_processes(rank: int, processes: int) -> None:
    """Every second process shares an image, other images in other groups; and a process can be its own group."""
    groups = [dist.new_group(list(range(first, processes, 2))) for first in (0, 1)]
    alone = [dist.new_group([one]) for one in range(processes)]
    for group in (groups[rank % 2], alone[rank]):
        plain, model = model_of("inline_deit_nano"), model_of("inline_deit_nano")
        x = images(seed=10 + rank % 2)
        plain(x).logsumexp(1).sum().backward()
        parallelize(model, group)(x).logsumexp(1).sum().backward()
        _equal_gradients(model, plain, group)
    with pytest.raises(ValueError, match=f"process {rank} is not in the group that shares the image"):
        parallelize(model, groups[1 - rank % 2])


def far_looking(rank: int, processes: int) -> None:
    """Kernels five rows high, and four; and some that reach further than a process's rows."""
    for side in (5, 4):
        plain, model = model_of("inline_deit_nano"), model_of("inline_deit_nano")
        for one in (plain, model):
            torch.manual_seed(5)
            one.stages[0].blocks[0].mixer.local = LocalResidual(16, 2, (side, 3)).double()
        plain(images()).logsumexp(1).sum().backward()
        parallelize(model)(images()).logsumexp(1).sum().backward()
        _equal_gradients(model, plain)
    model.stages[0].blocks[0].mixer.local = LocalResidual(16, 2, 11).double()
    fewest = 8 // processes
    with pytest.raises(ValueError, match=f"blocks need 5 rows of the next process, and one has {fewest}: take fewer"):
        parallelize(model)(images())
