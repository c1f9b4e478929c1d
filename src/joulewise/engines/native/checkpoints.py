"""Checkpoints of draft heads: every published layout is read from its tensor names and renamed to one.

Light: torch is loaded when a tensor is read, or a pickle opened.

What the names are in the wild: EAGLE-1/2 (``fc`` and ``layers.0`` without ``input_layernorm``), EAGLE-3 (``midlayer``),
its renamed copies and the speculators format (``layers.0`` whose query projection is twice as wide), Medusa
(``{i}.0.linear``), full models with Medusa heads (``medusa_head.{i}``), and the Medusa of old vLLM (``blocks.{i}``).
"""

from __future__ import annotations

import hashlib
import json
import pickle
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from safetensors import SafetensorError, safe_open

from joulewise.engines.shipped import shipped_folder
from joulewise.errors import UserError, first_paragraph

if TYPE_CHECKING:
    from torch import Tensor

Family = Literal["medusa", "eagle2", "eagle3"]

TITLES: dict[Family, str] = {"medusa": "Medusa", "eagle2": "EAGLE-1/2", "eagle3": "EAGLE-3"}

_PICKLES = ("pytorch_model*.bin", "medusa_lm_head*.pt")
_UNUSED = re.compile(r"t2d|verifier_norm\.weight|verifier_lm_head\.weight|.*rotary_emb\.inv_freq")
_MEDUSA = (
    (re.compile(r"(?:medusa_head\.)?(\d+)\.(\d+)\.linear\.(weight|bias)"), "heads.{}.blocks.{}.{}"),
    (re.compile(r"blocks\.(\d+)\.layers\.(\d+)\.(weight|bias)"), "heads.{}.blocks.{}.{}"),
    (re.compile(r"(?:medusa_head\.)?(\d+)\.\d+\.weight"), "heads.{}.output.weight"),
    (re.compile(r"lm_heads\.(\d+)\.weight"), "heads.{}.output.weight"),
    (re.compile(r"token_map"), "token_map"),
)
_EAGLE = (
    (re.compile(r"^model\."), ""),
    (re.compile(r"^midlayer\."), "layers.0."),
    (re.compile(r"^draft_id_to_target_id$"), "d2t"),
    (re.compile(r"^aux_norm_low\."), "fc_norm.0."),
    (re.compile(r"^aux_norm_mid\."), "fc_norm.1."),
    (re.compile(r"^aux_norm_high\."), "fc_norm.2."),
)


def misfit(source: str, why: str) -> UserError:
    """The error for a head that is not its target's."""
    return UserError(f"The head {source} was made for another model: {why}. Name its own target, or another head.")


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor that is read when it is asked for.

    Args:
        where: its file; None for one that is in memory.
        name: in its file.
        shape: known without reading.
        read: reads it.
    """

    where: Path | None
    name: str
    shape: tuple[int, ...]
    read: Callable[[], Tensor]


class Weights:
    """The tensors of a head under our names. Each is taken once, and its shape is checked.

    Args:
        source: the head's name, for messages.
        stored: by name.
    """

    def __init__(self, source: str, stored: Mapping[str, Stored]) -> None:
        self.source = source
        self._left = dict(stored)
        self._names = {ours: tensor.name for ours, tensor in stored.items()}

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor that has not been taken yet."""
        self.require(name)
        return self._left[name].shape

    def count(self, pattern: str) -> int:
        """How many numbers from 0 on there are at the group of ``pattern``, such as the layers of ``layers\\.(\\d+)``.

        Raises:
            UserError: a number between them is missing.
        """
        numbers = {int(found[1]) for name in self._left if (found := re.match(pattern, name))}
        missing = set(range(len(numbers))) - numbers
        if missing:
            last = min(
                name for name in self._left if (found := re.match(pattern, name)) and int(found[1]) == max(numbers)
            )
            raise UserError(
                f"The head {self.source} has the tensor {self._names[last]}, and none like it with {min(missing)} in "
                f"place of {max(numbers)}: a file of it is missing; fetch it again."
            )
        return len(numbers)

    def named(self, name: str) -> str:
        """The name that a tensor has in its file; of one that is not there, the name that it would have.

        The latter is told by its neighbours: what stands in the file for the beginning of their names stands there for
        its own.
        """
        if name in self._names:
            return self._names[name]
        told = [("", "", "")]
        for ours, theirs in self._names.items():
            if name.startswith(begins := _beginning(ours, theirs)):
                told.append((begins, ours, _beginning(theirs, ours)))
        begins, _, stands = max(told, key=lambda each: (len(each[0]), _shared(each[1], name)))
        return stands + name.removeprefix(begins)

    def take(self, name: str, *shape: int | None) -> Tensor:
        """Read a tensor.

        Args:
            name: ours.
            shape: what it must have; None where any size will do.

        Raises:
            UserError: there is none, its shape is another, or not every number in it is finite.
        """
        self.require(name)
        stored = self._left.pop(name)
        if len(shape) != len(stored.shape) or any(
            want not in (None, size) for want, size in zip(shape, stored.shape, strict=True)
        ):
            wanted = ", ".join("any" if size is None else str(size) for size in shape)
            raise misfit(
                self.source, f"its tensor {stored.name}{_in(stored.where)} has the shape {stored.shape}, not ({wanted})"
            )
        tensor = stored.read()
        # Through float32, because torch cannot ask every 8-bit kind.
        if not (tensor.float() if tensor.element_size() == 1 else tensor).isfinite().all():
            raise UserError(
                f"The tensor {stored.name}{_in(stored.where)} of the head {self.source} holds NaN or infinite numbers: "
                "its training went wrong or the file is damaged. Fetch or train the head again."
            )
        return tensor

    def finish(self) -> None:
        """Refuse tensors that nothing took: a variant that would run wrongly without them.

        Raises:
            UserError: naming them.
        """
        if self._left:
            raise UserError(
                f"The head {self.source} holds tensors that have no place in its family: {self._rest}. It is a "
                "variant that the engine `native` does not know: choose another head."
            )

    def require(self, name: str) -> None:
        """Refuse a head without the tensor ``name``.

        Raises:
            UserError: naming it.
        """
        if name not in self._left:
            raise UserError(
                f"The head {self.source} has no tensor {self.named(name)} (it has {self._rest or 'none left'}): it is "
                "not whole, is quantised, or is of a variant that is not known here. Fetch it again or choose another "
                "head."
            )

    @property
    def _rest(self) -> str:
        return _some(self._names[name] for name in self._left)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A head's files, opened.

    Args:
        name: as the plan named it.
        family: which kind of head it is.
        config: of ``config.json``; empty where there is none.
        stored: its tensors by our names.
    """

    name: str
    family: Family
    config: Mapping[str, Any]
    stored: Mapping[str, Stored]

    @property
    def weights(self) -> Weights:
        """Its tensors, all still to be taken."""
        return Weights(self.name, self.stored)

    @property
    def sha256(self) -> str | None:
        """Of the files with its tensors, in the order of their names; None in memory."""
        files = sorted({stored.where for stored in self.stored.values() if stored.where is not None})
        total = hashlib.sha256()
        for file in files:
            with file.open("rb") as opened:
                total.update(hashlib.file_digest(opened, "sha256").digest())
        return total.hexdigest() if files else None

    @property
    def layers(self) -> Mapping[str, Any]:
        """The configuration of the draft layers: a section of its own in the speculators format."""
        section = self.config.get("transformer_layer_config")
        return section if isinstance(section, dict) else self.config


def open_checkpoint(name: str, revision: str | None = None) -> Checkpoint:
    """Open a head's files and recognise its family; no tensor is read yet.

    Args:
        name: a folder, a file of weights (with its ``config.json`` beside it), a name on the hub, or a shipped one's.
        revision: on the hub; None takes the newest.

    Raises:
        UserError: nothing there, files that cannot be read, or no head that is known.
        EnvironmentFault: the files of a shipped one are missing.
    """
    checkpoint = _recognised(name, _place(name, revision), pickles=True)
    assert checkpoint is not None
    return checkpoint


def glance(name: str) -> Checkpoint | None:
    """As ``open_checkpoint``, of a folder or file that is here, by names and shapes alone and without torch.

    Returns:
        None where a pickle would have to be opened.
    """
    return _recognised(name, _place(name, None), pickles=False)


def _recognised(name: str, place: Path, pickles: bool) -> Checkpoint | None:
    folder = place if place.is_dir() else place.parent
    config = _config(folder / "config.json")
    kind = config.get("speculators_model_type", "eagle3")
    if kind != "eagle3":
        raise UserError(
            f"The head {name} is of the kind {kind!r} (speculators_model_type in its config.json), which the engine "
            "`native` does not run: choose an EAGLE-3 head."
        )
    seen: list[str] = []
    for files in _files(place):
        if not pickles and files[0].suffix != ".safetensors":
            return None
        raw = {key: stored for file in files for key, stored in _open(file).items()}
        seen += raw
        medusa = _renamed_medusa(raw)
        if medusa:
            return Checkpoint(name, "medusa", config, medusa)
        eagle = {_renamed_eagle(key): stored for key, stored in raw.items()}
        eagle = {key: stored for key, stored in eagle.items() if not _UNUSED.fullmatch(key)}
        family = _eagle_family(name, eagle)
        if family is not None:
            return Checkpoint(name, family, config, eagle)
    held = (
        f"its tensors are {_some(seen)}"
        if seen
        else "it holds no *.safetensors, pytorch_model*.bin or medusa_lm_head*.pt"
    )
    raise UserError(
        f"{name} holds no Medusa, EAGLE-1/2 or EAGLE-3 head ({held}): name the head's folder, file or hub name, not "
        "the target's."
    )


def _place(name: str, revision: str | None) -> Path:
    if (shipped := shipped_folder(name)) is not None:
        return shipped
    place = Path(name)
    if place.is_dir() or (place.is_file() and place.suffix in (".safetensors", ".bin", ".pt", ".pth")):
        return place
    if place.is_file():
        raise UserError(f"{name} is no file of weights: name a .safetensors, .bin, .pt or .pth file, or its folder.")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    # Safetensors first: most hubs carry a pickle with the same tensors, and it need not be fetched.
    for patterns in (["*.safetensors"], list(_PICKLES)):
        try:
            found = Path(
                snapshot_download(
                    name, revision=revision, allow_patterns=["*.json", *patterns], ignore_patterns=["*/*"]
                )
            )
        except (HfHubHTTPError, HFValidationError, OSError) as error:
            raise UserError(
                f"The head {name!r} is neither a folder nor a file here nor to be had from the model hub "
                f"({first_paragraph(error)}): check the spelling and the network, or fetch it with `hf download`."
            ) from error
        if any(_files(found)):
            break
    return found


def _files(place: Path) -> Iterable[list[Path]]:
    """The files to look at, one group after the other."""
    if place.is_file():
        return [[place]]
    groups = [sorted(place.glob("*.safetensors")), sorted(file for glob in _PICKLES for file in place.glob(glob))]
    return [group for group in groups if group]


def _config(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UserError(
            f"{file} could not be read as JSON ({first_paragraph(error)}): fetch the head again."
        ) from error
    if not isinstance(config, dict):
        raise UserError(f"{file} holds no JSON object: fetch the head again.")
    return config


def _open(file: Path) -> dict[str, Stored]:
    """The tensors of one file, none of them read."""
    try:
        if file.suffix == ".safetensors":
            opened: Any = safe_open(file, framework="np")
            return {
                name: Stored(file, name, tuple(opened.get_slice(name).get_shape()), partial(_tensor, file, name))
                for name in opened.keys()  # noqa: SIM118  (safe_open is no mapping)
            }
        tensors = _unpickled(file)
    except pickle.UnpicklingError as error:
        # Without torch's own words, which advise to run whatever the file holds.
        raise UserError(
            f"{file} is a pickle that holds more than tensors, or is damaged, and is not opened, because opening it "
            "could run code that came with it: take the head's safetensors file, or another head."
        ) from error
    except (SafetensorError, OSError, EOFError, RuntimeError) as error:
        raise UserError(
            f"{file} could not be read as tensors alone ({first_paragraph(error)}): fetch the head again, or take "
            "its safetensors file."
        ) from error
    if not isinstance(tensors, dict):
        raise UserError(f"{file} holds no table of tensors by name: name the file with the head's state dict.")
    import torch

    return in_memory({str(name): t for name, t in tensors.items() if isinstance(t, torch.Tensor)}, file)


def _tensor(file: Path, name: str) -> Tensor:
    opened: Any = safe_open(file, framework="pt")
    tensor: Tensor = opened.get_tensor(name)
    return tensor


def in_memory(tensors: Mapping[str, Tensor], where: Path | None = None) -> dict[str, Stored]:
    """Tensors that are there already, as a checkpoint holds them; ``where`` is the file that they came from."""
    return {name: Stored(where, name, tuple(tensor.shape), partial(_same, tensor)) for name, tensor in tensors.items()}


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _unpickled(file: Path) -> Any:
    """The pickle's tensors, mapped rather than read; files from before PyTorch 1.6 can only be read whole."""
    import torch

    with file.open("rb") as opened:
        zipped = opened.read(2) == b"PK"
    with warnings.catch_warnings():  # torch's doubts about old pickles are no help to a reader
        warnings.simplefilter("ignore")
        return torch.load(file, map_location="cpu", weights_only=True, mmap=zipped)


def _renamed_medusa(raw: Mapping[str, Stored]) -> dict[str, Stored]:
    """The Medusa heads among the tensors, empty if there is none. A full model's own tensors are left out."""
    found: dict[str, Stored] = {}
    for name, stored in raw.items():
        for pattern, ours in _MEDUSA:
            match = pattern.fullmatch(name)
            if match:
                found[ours.format(*match.groups())] = stored
                break
    return found if any(".blocks." in name for name in found) else {}


def _renamed_eagle(name: str) -> str:
    for pattern, ours in _EAGLE:
        name = pattern.sub(ours, name)
    return name


def _eagle_family(source: str, stored: Mapping[str, Stored]) -> Family | None:
    names = tuple(f"layers.0.self_attn.{part}_proj.weight" for part in "qo")
    # No other model has these two, so a layer beside them that lacks a tensor is a damaged head's.
    marked = "fc.weight" in stored or "layers.0.hidden_norm.weight" in stored
    if marked and any(name.startswith("layers.0.") for name in stored):
        for name in names:
            Weights(source, stored).require(name)
    query, output = map(stored.get, names)
    if query is None or output is None:
        return None
    if "mask_hidden" in stored:
        raise UserError(
            f"The head {source} drafts in parallel (P-EAGLE: it holds the tensor mask_hidden), which the engine "
            "`native` does not run: choose an EAGLE-3 head without it."
        )
    if query.shape[-1] == 2 * output.shape[0]:
        return "eagle3"
    if "layers.0.input_layernorm.weight" in stored or ("norm.weight" in stored and "fc.weight" not in stored):
        return None  # a model's own layers
    Weights(source, stored).require("fc.weight")
    return "eagle2"


def _shared(name: str, other: str) -> int:
    """With how many characters both begin."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(name, other, strict=False)))


def _beginning(name: str, other: str) -> str:
    """What of a name is not the same as in another from some dot on."""
    parts, others = name.split("."), other.split(".")
    while parts and others and parts[-1] == others[-1]:
        parts.pop()
        others.pop()
    return ".".join(parts) + ("." if parts and len(parts) < name.count(".") + 1 else "")


def _in(where: Path | None) -> str:
    return "" if where is None else f" (in {where.name})"


def _some(names: Iterable[str]) -> str:
    known = sorted(names)
    return ", ".join(known[:6]) + (f" and {len(known) - 6} more" if len(known) > 6 else "")
