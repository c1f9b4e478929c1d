"""Trees against plain Python: ancestors, mask, depths, the walk, the path."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.engines.native.tree import Tree, chain, deepest, path, walk

CPU = torch.device("cpu")


@st.composite
def parent_tables(draw: st.DrawFn) -> list[int]:
    """A parent before each node; from chains to stars."""
    width = draw(st.integers(1, 24))
    near = draw(st.integers(1, 24))
    return [0, *(draw(st.integers(max(0, node - near), node - 1)) for node in range(1, width))]


def lineage(parents: list[int], node: int) -> list[int]:
    """From the root to ``node``, by following parents."""
    way = [node]
    while way[0] != 0:
        way.insert(0, parents[way[0]])
    return way


def height(parents: list[int]) -> int:
    return max(len(lineage(parents, node)) for node in range(len(parents))) - 1


def tree_of(parents: list[int], spare: int = 0) -> Tree:
    return Tree.of(torch.tensor(parents), height(parents) + spare)


@settings(max_examples=60, deadline=None)
@given(parents=parent_tables(), before=st.integers(0, 9), spare=st.integers(0, 3))
def test_each_node_sees_what_is_before_its_ancestors_and_itself(parents: list[int], before: int, spare: int) -> None:
    tree = tree_of(parents, spare)
    mask = tree.mask(before)
    assert mask.shape == (len(parents), before + len(parents))
    for node in range(len(parents)):
        way = lineage(parents, node)
        assert mask[node].nonzero()[:, 0].tolist() == [*range(before), *(before + n for n in way)]
        assert int(tree.depths[node]) == len(way) - 1


@settings(max_examples=60, deadline=None)
@given(parents=parent_tables(), spare=st.integers(0, 3), data=st.data())
def test_the_path_leads_from_the_root_to_the_node(parents: list[int], spare: int, data: st.DataObject) -> None:
    tree = tree_of(parents, spare)
    last = data.draw(st.integers(0, len(parents) - 1))
    found = path(tree, torch.tensor([last])).tolist()
    way = lineage(parents, last)
    assert len(found) == min(tree.height + 1, len(parents))
    assert found[: len(way)] == way
    assert not set(found[len(way) :]) & set(way)


@settings(max_examples=100, deadline=None)
@given(parents=parent_tables(), data=st.data())
def test_deepest_ends_the_longest_agreed_path(parents: list[int], data: st.DataObject) -> None:
    count = len(parents) - 1
    agreed = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    scores = [0.0, *data.draw(st.lists(st.integers(-9, -1).map(float), min_size=count, max_size=count))]
    whole = [all(agreed[n - 1] for n in lineage(parents, node)[1:]) for node in range(len(parents))]
    depths = [len(lineage(parents, node)) - 1 if whole[node] else -1 for node in range(len(parents))]
    tree = tree_of(parents)
    flags = torch.tensor(agreed, dtype=torch.bool)
    assert deepest(tree, flags).tolist() == [depths.index(max(depths))]
    sums = [sum(scores[n] for n in lineage(parents, node)) for node in range(len(parents))]
    best = max(sums[node] for node in range(len(parents)) if depths[node] == max(depths))
    chosen = int(deepest(tree, flags, torch.tensor(scores)))
    assert depths[chosen] == max(depths)
    assert sums[chosen] == best


@settings(max_examples=100, deadline=None)
@given(parents=parent_tables(), data=st.data())
def test_the_walk_follows_what_was_drawn_at_each_node(parents: list[int], data: st.DataObject) -> None:
    """Tokens repeat over the tree, as they do in real ones, but not among siblings."""
    order = {node: data.draw(st.permutations(range(len(parents)))) for node in set(parents)}
    siblings = {node: [n for n in range(1, len(parents)) if parents[n] == node] for node in set(parents)}
    tokens = [order[parents[n]][siblings[parents[n]].index(n)] for n in range(1, len(parents))]
    drawn = [data.draw(st.integers(0, len(parents) - 1)) for _ in parents]
    node = 0
    while child := next((n for n in siblings.get(node, []) if tokens[n - 1] == drawn[node]), None):
        node = child
    ends = walk(tree_of(parents), torch.tensor(tokens, dtype=torch.long), torch.tensor(drawn))
    assert ends.tolist() == [node]


@pytest.mark.parametrize("tokens", [0, 1, 7])
def test_a_chain_is_the_tree_of_consecutive_nodes(tokens: int) -> None:
    made = chain(tokens, CPU)
    assert made.chain
    assert made.height == tokens
    assert made.parents.tolist() == [0, *range(tokens)]
    assert made.depths.tolist() == [*range(tokens + 1)]
    assert torch.equal(made.ancestors, torch.ones(tokens + 1, tokens + 1, dtype=torch.bool).tril())
    assert not Tree.of(made.parents, tokens).chain
