"""RotaryEmbedding, a module that holds the frequencies and the settings of a config."""

from __future__ import annotations

import copy
import os
import types
from typing import TYPE_CHECKING, Any, Tuple, overload

import torch

from .. import _spec
from .._abi import COPY
from .._config import open_config
from .._errors import Error, refuse_unknown
from .._models import model_rotation
from .._options import ARRAYS, TABLE, Layout, Pairing
from .._values import flag, integer, listed, shown, word
from ..frequencies import Frequencies, frequencies
from . import _check_tensor, _is_distributed, rotate
from ._transforms import is_followed

_READ = ("position_ids", "start_positions", "cu_seqlens")  # options that make positions depend on memory
_BY_LENGTH = ("dynamic", "longrope")  # rules whose frequencies depend on the length of the input
_OF_ANGLES = ("inv_freq", "freqs", "cos", "sin", "angle_columns")


class RotaryEmbedding(torch.nn.Module):
    """Rotates q and k, or any tensors, by frequencies that the module holds.

    Arguments:
        config: a Hugging Face config (model.config, a dict, the path of a config.json or of its folder), or
            trope.Frequencies. From a config, the module reads the frequencies, the pairing, the window and the axes.
            From trope.Frequencies, it reads only the frequencies.
        layout: the layout option of rotate.
        pairing: the pairing option of rotate. Required for Frequencies, and for configs with an unknown model_type.
        learned: True makes inv_freq a parameter. It stays in float32 if the module is cast to another dtype. It
            goes through an f32 table of radians, as in transformers. Otherwise, angles are exact at any position.
        layer_type: "full_attention", "sliding_attention", ..., for a config whose layers rotate differently.
        seq_len: the length of the input in tokens, for rope_type "dynamic" and "longrope", whose frequencies depend on it.
            By default, each call determines it.
        options: further options of rotate that are the same in every call (rotary_dim, rounding, ...). They must not
            contradict the config. To rotate in another way than the config, pass trope.frequencies(config) instead of it.

    Raises:
        trope.Error: names the argument or the key of the config.
    """

    if TYPE_CHECKING:  # the required arguments and the return type of a call

        def __init__(
            self,
            config: Any,
            *,
            layout: Layout,
            pairing: Pairing | None = None,
            learned: bool = False,
            layer_type: str | None = None,
            seq_len: int | None = None,
            **options: Any,
        ) -> None:
            ...  # fmt: skip

        @overload
        def __call__(self, x: torch.Tensor, /, *, seq_len: int | None = None, **options: Any) -> torch.Tensor: ...
        @overload
        def __call__(
            self, x: torch.Tensor, y: torch.Tensor, /, *more: torch.Tensor, seq_len: int | None = None, **options: Any
        ) -> Tuple[torch.Tensor, ...]: ...
        def __call__(self, *tensors: Any, seq_len: int | None = None, **options: Any) -> Any: ...

    else:

        def __init__(self, config, **options):
            super().__init__()
            self._set_up(config, **options)

    def _set_up(self, config, layout=None, pairing=None, learned=False, layer_type=None, seq_len=None, **options):
        self.options = dict(options, layout=layout, pairing=pairing)
        self.trailing_dim = 0  # the number of last elements of a head that rotate; 0: the options decide
        self._config, self._layer_type, self._frequencies = None, layer_type, {}
        self._seq_len = seq_len
        if isinstance(config, Frequencies):
            for name, value in (("layer_type", layer_type), ("seq_len", seq_len)):
                if value is not None:
                    raise Error("%s is only for a config, but frequencies are given" % name, name)
            self.frequencies = config
        else:
            if isinstance(config, (str, os.PathLike)):
                config = open_config(config).mapping
            self.frequencies = frequencies(config, layer_type=layer_type, seq_len=seq_len)
            self._adopt(model_rotation(config, layer_type))
            if self.frequencies.rule in _BY_LENGTH and seq_len is None:
                self._config = copy.deepcopy(config)  # the caller may change its own
        self._check_options()
        self.inv_freq = None
        if flag(learned, "learned"):
            if self._config is not None:
                message = (
                    "seq_len is missing: with rope_type %r, the initial values of a learned inv_freq depend on the length"
                )
                raise Error(message % self.frequencies.rule, "seq_len")
            self.options.setdefault("mscale", self.frequencies.attention_factor)
            self.inv_freq = torch.nn.Parameter(torch.empty(len(self.frequencies), dtype=torch.float32))
            self.reset_parameters()

    def _adopt(self, rotation):
        """Sets the options that a config determines, and refuses options that contradict it."""
        specified = {"inverse": rotation.inverse, "pair_axis": rotation.pair_axis}
        specified["mscale"] = self.frequencies.attention_factor
        if rotation.pairing is not None:
            specified.update(pairing=rotation.pairing, pairing_out=rotation.pairing_out or rotation.pairing)
            specified.update(rotary_dim=rotation.rotary_dim, rotary_offset=0, parts=1)
        if rotation.is_trailing:
            self.trailing_dim = rotation.rotary_dim
            del specified["rotary_offset"]
            if self.options.get("rotary_offset") is not None:
                message = "rotary_offset is given, but in a %s the last %d elements of a head rotate: leave it out"
                raise Error(message % (rotation.model_type, self.trailing_dim), "rotary_offset")
        for name, value in specified.items():
            given = self.options.get(name)
            if given is None:
                self.options[name] = value
            elif value is not None and not _agrees(name, given, value):
                message = "%s is %s, but the config (model_type %r) says %r: to use another, pass trope.frequencies(config)"
                raise Error(message % (name, shown(given), rotation.model_type, value), name)
        if self.options["pairing"] is None:
            message = "pairing is missing: it is not known how models of type %r pair elements"
            raise Error(message % rotation.model_type, "pairing")

    def _check_options(self):
        """Refuses options that a call would refuse for all tensors."""
        known = [name for name in TABLE if name not in _OF_ANGLES]
        if not set(self.options).issubset([*known, "max_position"]):
            refuse_unknown(self.options, [*known, "max_position"], "trope.torch.RotaryEmbedding")
        options = {name: v for name, v in self.options.items() if name not in ARRAYS and name != "max_position"}
        per_tensor = [v for name, v in options.items() if name.startswith("rotary_") and isinstance(v, (list, tuple))]
        rank = len(word(options["layout"], _spec.DIMS, "layout"))
        one = types.SimpleNamespace(shape=(1,) * (rank - 1) + (2 * len(self.frequencies),))
        _spec.resolve([one] * max(1, *map(len, per_tensor), 1), {**options, "inv_freq": self.frequencies})

    def reset_parameters(self):
        """Resets a learned inv_freq to the frequencies that the module was made with."""
        if self.inv_freq is None:
            return
        values = torch.tensor(self.frequencies.inv_freq, dtype=torch.float32, device="cpu")
        with torch.no_grad():
            if hasattr(self.inv_freq, "device_mesh"):  # a DTensor, from FSDP2
                from torch.distributed.tensor import distribute_tensor

                mesh, placements = self.inv_freq.device_mesh, self.inv_freq.placements
                values = distribute_tensor(values.to(mesh.device_type), mesh, placements, src_data_rank=None)
            self.inv_freq.copy_(values)

    def _apply(self, fn, recurse=True):
        """Keeps the dtype of a learned inv_freq in casts to 16 bits, and sets its values when it leaves the meta device."""
        was_meta = self.inv_freq is not None and self.inv_freq.is_meta
        super()._apply(keep_precision(fn), recurse)
        if was_meta and not self.inv_freq.is_meta:
            self.reset_parameters()
        return self

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, strict, missing, unexpected, errors):
        name = prefix + "inv_freq"
        given = state_dict.get(name)
        if self.inv_freq is not None and given is not None and given.element_size() < 4:
            errors.append("%s has dtype %s, in which frequencies are rounded: save it in float32" % (name, given.dtype))
            return
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing, unexpected, errors)

    def _find_frequencies(self, tensors, seq_len, options):
        """Returns the Frequencies of a call."""
        tokens = self._count_tokens(tensors, options)
        if seq_len is not None:
            integer(seq_len, "seq_len", 1, 2**53)
        given = self._seq_len if seq_len is None else seq_len
        if given is not None and tokens is not None and given < tokens:
            raise Error("seq_len is %d, but the call has %d positions" % (given, tokens), "seq_len")
        if self._config is None:
            if seq_len is not None:
                message = "seq_len is given, but the frequencies (rope_type %r) are the same for every length"
                raise Error(message % self.frequencies.rule, "seq_len")
            return self.frequencies
        if seq_len is None and tokens is None:
            name = next(name for name in _READ if options.get(name) is not None)
            message = (
                "seq_len is missing: rope_type %r chooses the frequencies by the largest position, but the host does not "
                "read %s; give seq_len, one more than the largest position"
            )
            raise Error(message % (self.frequencies.rule, name), "seq_len")
        return self._of_length(max(tokens, 1) if seq_len is None else seq_len)

    def _count_tokens(self, tensors, options):
        """Returns one more than the largest position of a call, or None if positions are read from memory."""
        if any(options.get(name) is not None for name in _READ):
            return None
        cp_size = options.get("cp_size")
        tokens = tensors[0].shape[_spec.DIMS[self.options["layout"]].tokens]
        return tokens * (1 if cp_size is None else integer(cp_size, "cp_size", 1))

    def _of_length(self, seq_len):
        known = self._frequencies.get(seq_len)
        if known is None:
            if torch.compiler.is_compiling():
                message = "seq_len %d is new: under torch.compile, pass seq_len to RotaryEmbedding itself"
                raise Error(message % seq_len, "seq_len")
            if len(self._frequencies) > 4096:
                self._frequencies.clear()
            known = frequencies(self._config, layer_type=self._layer_type, seq_len=seq_len)
            # Equal Frequencies are replaced by one object, which makes the lookup of every call fast.
            known = next((f for f in (self.frequencies, *self._frequencies.values()) if f == known), known)
            self._frequencies[seq_len] = known
        return known

    def forward(self, *tensors, seq_len=None, **options):
        """Calls rotate(*tensors, ...) with the frequencies and options of the module.

        Arguments:
            tensors: the tensors of rotate.
            seq_len: for rope_type "dynamic" and "longrope", one more than the largest position of the call. transformers
                chooses the frequencies by it. The default is the number of tokens (times cp_size). It is required with
                position_ids, start_positions or cu_seqlens.
            options: further options of rotate: position_ids, cu_seqlens, ...
        """
        for name in options:
            if name in _OF_ANGLES or self.options.get(name) is not None:
                raise Error("%s is set by the module, and cannot be given in a call" % name, name)
        own_axes = self.options.get("pair_axis") is not None
        options = {**self.options, **options}
        for i, x in enumerate(tensors):
            if not _is_distributed(x):  # rotate checks DTensors
                _check_tensor(x, "tensors[%d]" % i)
        if not tensors or any(x.dim() != len(self.options["layout"]) for x in tensors):
            return rotate(*tensors, inv_freq=self.frequencies, **options)  # raises the error
        if self.trailing_dim:
            options["rotary_offset"] = self._trailing_offsets(tensors)
        ids = options.get("position_ids")
        if ids is not None and not _is_distributed(ids):
            _check_tensor(ids, "position_ids")
        if own_axes and (ids is None or ids.dim() < 3 or ids.shape[0] == 1):  # text: one position for all axes
            del options["pair_axis"]
        if self.inv_freq is None:
            return rotate(*tensors, inv_freq=self._find_frequencies(tensors, seq_len, options), **options)
        if seq_len is not None:
            raise Error("seq_len is given, and inv_freq is learned", "seq_len")
        return rotate(*tensors, inv_freq=self._learned(), **options)

    def _learned(self):
        """Returns inv_freq as a Parameter, because torch.func.functional_call replaces it by an ordinary tensor."""
        inv_freq = self.inv_freq
        if isinstance(inv_freq, torch.nn.Parameter) or inv_freq.requires_grad or is_followed(inv_freq):
            return inv_freq
        return torch.nn.Parameter(inv_freq, requires_grad=False)

    def _trailing_offsets(self, tensors):
        """Returns rotary_offset of each tensor, for a window at the end of its heads."""
        widths = self.options["rotary_dim"]
        widths = widths if isinstance(widths, (list, tuple)) else [widths] * len(tensors)
        for i, x in enumerate(tensors):
            if x.shape[-1] < self.trailing_dim:
                message = "tensors[%d] has heads of %d elements, but the last %d must rotate"
                raise Error(message % (i, x.shape[-1], self.trailing_dim), "tensors[%d]" % i)
        return [0 if width == COPY else x.shape[-1] - width for width, x in zip(widths, tensors)]

    def extra_repr(self):
        options = {"rotary_dim": self.frequencies.rotary_dim, **self.options}
        given = ["%s=%r" % item for item in options.items() if item[1] is not None and item[1] is not False]
        return ", ".join([self.frequencies.rule, *given])


def _agrees(name, given, specified):
    """Whether an option of the caller agrees with the config for each tensor. A rotary_dim of trope.COPY
    always agrees, because such a tensor is not rotated."""
    each = listed(given)
    if name == "pair_axis":
        return each is not None and tuple(each) == tuple(specified)
    return all(one == specified or (name == "rotary_dim" and one == COPY) for one in ([given] if each is None else each))


def keep_precision(fn):
    """Returns a function for Module._apply that moves tensors like `fn`, but does not cast them to fewer bits."""

    def move(t):
        moved = fn(t)
        if t.is_floating_point() and moved.element_size() < t.element_size():
            return t.to(moved.device)
        return moved

    return move
