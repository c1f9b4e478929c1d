"""Every layout of Medusa heads, from a file to its logits; the published trees; the drafter."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import save_file
from torch import Tensor

import tiny_heads
from joulewise.decoding import Medusa
from joulewise.decoding.medusa_trees import TREES, paths_of
from joulewise.engines.native.draft import Kept
from joulewise.engines.native.drafters.medusa import MedusaDrafter
from joulewise.engines.native.heads import open_head, taps_of
from joulewise.engines.native.heads.medusa import MedusaHead
from joulewise.engines.native.heads.synthetic import random_medusa
from joulewise.engines.native.model import DecoderModel, Hidden
from joulewise.engines.native.session import uncaptured
from joulewise.engines.native.tree import walk
from joulewise.errors import UserError
from tiny_heads import ROWS, SIZE, Tensors, draw


@pytest.fixture(scope="module")
def target() -> DecoderModel:
    return tiny_heads.target(num_hidden_layers=2)


def opened(name: str, target: DecoderModel) -> MedusaHead:
    head = open_head(name, target, "medusa")
    assert isinstance(head, MedusaHead)
    return head


def reference(tensors: Tensors, heads: int, feature: Tensor, matrix: Tensor | None = None) -> Tensor:
    """The logits of each head, shape ``(heads, rows)``, from tensors named as in Medusa-1."""
    rows = []
    for head in range(heads):
        state, layer = feature[0], 0
        while f"{head}.{layer}.linear.weight" in tensors:
            inner = tensors[f"{head}.{layer}.linear.weight"] @ state + tensors[f"{head}.{layer}.linear.bias"]
            state = state + inner / (1 + (-inner).exp())
            layer += 1
        rows.append((tensors[f"{head}.{layer}.weight"] if matrix is None else matrix) @ state)
    return torch.stack(rows)


def agrees(head: MedusaHead, expected: Tensor) -> None:
    feature = draw(1, SIZE, seed=5, spread=1.0)
    torch.testing.assert_close(head.logits(feature), expected, rtol=1e-4, atol=1e-4)
    assert head.ranked(feature, 3).tolist() == expected.sort(descending=True, stable=True).indices[:, :3].tolist()


FEATURE = draw(1, SIZE, seed=5, spread=1.0)


@pytest.mark.parametrize("file", ["medusa_lm_head.pt", "medusa_lm_head.safetensors"])
@pytest.mark.parametrize("layers", [1, 2])
def test_medusa_1_has_as_many_heads_as_its_tensors_say(
    tmp_path: Path, target: DecoderModel, file: str, layers: int
) -> None:
    tensors = tiny_heads.medusa(5, layers)
    name = tiny_heads.write(tmp_path, tensors, {"medusa_num_heads": 2, "medusa_num_layers": layers}, file)
    head = opened(name, target)
    assert head.heads == 5
    agrees(head, reference(tensors, 5, FEATURE))
    assert taps_of(name, 2) == ()


def test_medusa_2_lies_among_the_shards_of_a_full_model(tmp_path: Path, target: DecoderModel) -> None:
    tensors = tiny_heads.medusa(3)
    own = {name: tensor.detach().clone() for name, tensor in target.model.state_dict().items()}
    stored = own | tiny_heads.renamed(tensors, ("", "medusa_head."))
    names = sorted(stored)
    for part, start in enumerate(("medusa_head.0", "medusa_head.2")):
        shard = {n: stored[n] for n in names if (n < "medusa_head.1") == (part == 0)}
        save_file(shard, tmp_path / f"model-0000{part + 1}-of-00002.safetensors")
        assert any(n.startswith(start) for n in shard)
    (tmp_path / "config.json").write_text(json.dumps(target.model.config.to_dict()), encoding="utf-8")
    agrees(opened(str(tmp_path), target), reference(tensors, 3, FEATURE))


@pytest.mark.parametrize("mapped", [False, True])
def test_old_vllm(tmp_path: Path, target: DecoderModel, mapped: bool) -> None:
    tensors = tiny_heads.medusa(2, layers=2)
    ids = torch.arange(0, ROWS, 2)
    stored: Tensors = {}
    for head in range(2):
        for layer in range(2):
            for part in ("weight", "bias"):
                stored[f"blocks.{head}.layers.{layer}.{part}"] = tensors[f"{head}.{layer}.linear.{part}"]
        matrix = tensors[f"{head}.2.weight"]
        stored[f"lm_heads.{head}.weight"] = matrix[ids] if mapped else matrix
    head = opened(tiny_heads.write(tmp_path, stored | ({"token_map": ids} if mapped else {})), target)
    expected = reference(tensors, 2, FEATURE)
    if not mapped:
        agrees(head, expected)
    else:
        best = expected[:, ids].sort(descending=True).indices[:, :4]
        assert head.ranked(FEATURE, 4).tolist() == ids[best].tolist()


def test_the_variant_over_the_targets_own_output_matrix(tmp_path: Path, target: DecoderModel) -> None:
    tensors = tiny_heads.medusa(3)
    blocks = {name: tensor for name, tensor in tensors.items() if ".linear." in name}
    head = opened(tiny_heads.write(tmp_path, blocks), target)
    agrees(head, reference(tensors, 3, FEATURE, target.head.weight.detach()))


def test_padded_rows_of_another_size_are_cut_to_the_targets(tmp_path: Path, target: DecoderModel) -> None:
    tensors = tiny_heads.medusa(1)
    tensors["0.1.weight"] = torch.cat((tensors["0.1.weight"], 9 * torch.ones(5, SIZE)))
    assert opened(tiny_heads.write(tmp_path, tensors), target).logits(FEATURE).shape == (1, ROWS)


# Trees. The numbers of nodes at each depth are those of the reference.

DEPTHS = {
    "mc_sim_7b_63": (10, 28, 23, 2),
    "vicuna_7b_stage1": (10, 32, 20, 1),
    "vicuna_7b_stage2": (10, 23, 23, 7),
    "vicuna_13b_stage1": (10, 29, 23, 1),
    "vicuna_13b_stage2": (10, 19, 25, 9),
    "vicuna_33b_stage1": (10, 34, 19, 0),
    "vicuna_33b_stage2": (10, 24, 24, 5),
    "zephyr_stage2": (10, 27, 23, 3),
}


def test_published_trees() -> None:
    assert set(TREES) == set(DEPTHS)
    for name, depths in DEPTHS.items():
        paths = paths_of(name)
        counts = Counter(map(len, paths))
        assert tuple(counts[depth] for depth in (1, 2, 3, 4)) == depths
        assert len(set(paths)) == 63
        assert max(max(path) for path in paths) <= 9
    # Two single facts of the default tree: the deepest paths.
    assert {path for path in paths_of("mc_sim_7b_63") if len(path) == 4} == {(0, 0, 0, 0), (0, 0, 0, 1)}


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ([], "this one has 0"),
        ([[i] for i in range(256)], "this one has 256"),
        ([[0], [1, 0]], r"\[1, 0\] of the Medusa tree goes on from a path that is not there"),
        ([[0], [0]], r"\[0\] of the Medusa tree stands there twice"),
        ([[]], r"The path \[\] of the Medusa tree is empty: each path"),
        ([[-1]], "has a rank below 0"),
    ],
)
def test_a_tree_that_is_none_is_refused(paths: list[list[int]], message: str) -> None:
    with pytest.raises(UserError, match=message):
        paths_of(paths)


def test_an_unknown_tree_is_refused() -> None:
    with pytest.raises(UserError, match="no Medusa tree 'oak': choose one of mc_sim_7b_63"):
        paths_of("oak")


def test_a_plan_refuses_what_is_no_tree_and_knows_how_deep_one_is() -> None:
    for tree, message in (("oak", "no Medusa tree 'oak'"), (((0,), (1, 0)), "goes on from a path that is not there")):
        with pytest.raises(ValidationError, match=message):
            Medusa(tree=tree)
    assert [Medusa(tree=tree).path_tokens for tree in ("mc_sim_7b_63", "vicuna_33b_stage1", ((0,),))] == [4, 3, 1]


# The drafter.


def begun(drafter: MedusaDrafter, feature: Tensor = FEATURE) -> MedusaDrafter:
    hidden = Hidden(torch.cat((draw(4, SIZE, seed=1), feature)))
    drafter.reset(torch.arange(5), hidden, torch.tensor([7]), capacity=100)
    return drafter


def test_each_node_takes_its_rank_of_its_levels_head(target: DecoderModel) -> None:
    head = random_medusa(target, heads=4, seed=1)
    draft = begun(MedusaDrafter(head)).propose(room=50)
    ranked = head.ranked(FEATURE, 10)
    paths = paths_of("mc_sim_7b_63")
    assert draft.tokens.tolist() == [int(ranked[len(path) - 1, path[-1]]) for path in paths]
    assert draft.tree.depths.tolist() == [0, *map(len, paths)]
    for node, path in enumerate(paths, start=1):
        above = {paths.index(path[:i]) + 1 for i in range(1, len(path))}
        assert set(draft.tree.ancestors[node].nonzero().flatten().tolist()) == above | {0, node}


def test_a_tree_is_cut_to_the_room(target: DecoderModel) -> None:
    drafter = begun(MedusaDrafter(random_medusa(target, heads=4), "mc_sim_7b_63"))
    assert drafter.most_nodes == 63
    whole = drafter.propose(room=4)
    for room, nodes in ((0, 0), (1, 10), (2, 38), (3, 61), (4, 63), (99, 63)):
        cut = drafter.propose(room)
        assert cut.tokens.tolist() == whole.tokens[:nodes].tolist()
        assert cut.tree.depths.tolist() == whole.tree.depths[: nodes + 1].tolist()
        assert cut.tree.height == min(room, 4)


def test_a_tree_of_one_path_is_a_chain(target: DecoderModel) -> None:
    chain = begun(MedusaDrafter(random_medusa(target), [[0, 0], [0]])).propose(9).tree
    assert chain.chain
    assert not begun(MedusaDrafter(random_medusa(target), [[0], [1]])).propose(9).tree.chain


def test_the_newest_feature_counts_and_nothing_of_the_last_prompt(target: DecoderModel) -> None:
    head = random_medusa(target, heads=2, own_output=False, seed=2)
    drafter, fresh = MedusaDrafter(head, [[0], [0, 0]]), MedusaDrafter(head, [[0], [0, 0]])
    first, second = draw(1, SIZE, seed=30, spread=2.0), draw(1, SIZE, seed=31, spread=2.0)
    begun(drafter, first).propose(9)
    drafter.observe(Kept(torch.tensor([1, 2]), [1, 2], Hidden(torch.cat((first, second))), length=5))
    assert drafter.propose(9).tokens.tolist() == begun(fresh, second).propose(9).tokens.tolist()
    assert begun(drafter, first).propose(9).tokens.tolist() == begun(fresh, first).propose(9).tokens.tolist()
    assert begun(fresh, first).propose(9).tokens.tolist() != begun(fresh, second).propose(9).tokens.tolist()


def test_captured_work_gives_the_same_and_is_kept_with_the_heads(target: DecoderModel) -> None:
    head, captured = random_medusa(target, heads=4, seed=4), []

    def counted(run: Callable[[], None]) -> Callable[[], None]:
        captured.append(1)
        return uncaptured(run)

    features = [draw(1, SIZE, seed=seed, spread=2.0) for seed in (40, 41)]
    for feature in features * 2:
        expected = begun(MedusaDrafter(head), feature).propose(9)
        found = begun(MedusaDrafter(head, capture=counted), feature).propose(9)
        assert found.tokens.tolist() == expected.tokens.tolist()
    assert len(captured) == 1


def test_the_walk_follows_a_target_that_draws_what_the_heads_say(target: DecoderModel) -> None:
    head = random_medusa(target, heads=4, seed=3)
    draft = begun(MedusaDrafter(head, paths_of("mc_sim_7b_63"))).propose(9)
    path, ranked = (0, 0, 0, 1), head.ranked(FEATURE, 10)
    drawn = torch.zeros(64, dtype=torch.long)
    numbers = {p: i + 1 for i, p in enumerate(paths_of("mc_sim_7b_63"))} | {(): 0}
    for level in range(4):
        drawn[numbers[path[:level]]] = ranked[level, path[level]]
    assert int(walk(draft.tree, draft.tokens, drawn)) == numbers[path]


def test_a_tree_that_the_heads_cannot_fill_is_refused(target: DecoderModel) -> None:
    head = random_medusa(target, heads=3)
    with pytest.raises(UserError, match="4 deep needs as many heads, and random weights has 3"):
        MedusaDrafter(head, paths_of("mc_sim_7b_63"))
    with pytest.raises(UserError, match="over the 80 tokens"):
        MedusaDrafter(head, [[ROWS]] + [[i] for i in range(3)])
