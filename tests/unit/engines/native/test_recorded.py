"""A captured call gives what its work gives, on buffers of its own."""

from __future__ import annotations

import torch

from joulewise.engines.native.recorded import Recorded
from joulewise.engines.native.session import uncaptured


def test_numbers_fill_a_buffer_and_shorter_inputs_its_first_rows() -> None:
    recorded = Recorded(
        lambda number, rows: (number + 1, rows * 2), (torch.zeros(1), torch.zeros(3, 2)), uncaptured, "a sum"
    )
    number, rows = recorded(4, torch.ones(3, 2))
    assert (number.tolist(), rows.tolist()) == ([5.0], [[2.0, 2.0]] * 3)
    number, rows = recorded(7, torch.full((1, 2), 5.0))
    assert (number.tolist(), rows.tolist()) == ([8.0], [[10.0, 10.0], [2.0, 2.0], [2.0, 2.0]])


def test_the_inputs_and_the_examples_stay_as_they_are() -> None:
    example, given = torch.full((2,), 3.0), torch.ones(2)
    recorded = Recorded(lambda value: value.add_(1), (example,), uncaptured, "an addition")
    recorded(given)
    assert (example.tolist(), given.tolist()) == ([3.0, 3.0], [1.0, 1.0])
