"""--config: the settings of a Hugging Face config for a rotation, in addition to the command line."""

from .. import pair_axis
from .._errors import Error
from .._models import has_axes, read_axes, read_family
from ..frequencies import read_rotation
from .refused import refuse, refuse_file

_WIDTH_KEYS = ("qk_rope_head_dim", "rotary_dim")


class Config:
    """A config, read for the layers in a file.

    rotation  the Rotation (frequencies.py) that it describes
    family    the pairing and window of its model (_models.py)
    """

    def __init__(self, options, groups):
        self.path, self.options = options.config, options
        self.uses_axes = any(map(_has_axes, groups))
        with self.refusing():
            try:
                self.rotation = read_rotation(options.config, options.layer_type, {})
            except OSError as error:
                refuse_file(self.path, "%s", error.strerror)
            self.family = read_family(self.rotation)
        self._read_base()
        self._read_pairing()
        sizes = self.rotation.sizes
        if sizes["head_dim"] is not None and sizes["qk_rope_head_dim"] is None:
            self._agree("head_dim", sizes["head_dim"], "head_dim")

    def refusing(self):
        return _Refusing(self.path)

    def _agree(self, option, value, key):
        """Sets an option that is not given. A given option must have the same value."""
        specified = getattr(self.options, option)
        if specified is not None and specified != value:
            text = "--%s: contradicts %s: %s, which is %s"
            refuse(text, option.replace("_", "-"), self.path, key, value)
        setattr(self.options, option, value)

    def _read_base(self):
        theta = self.options.rope_theta
        if theta is not None and self.rotation.rope["rope_theta"] is None:
            self.rotation.rope["rope_theta"] = theta
        elif theta is not None:
            with self.refusing():
                self._agree("rope_theta", self.rotation.need("rope_theta"), "rope_theta")

    def check_base(self):
        if self.rotation.rope["rope_theta"] is None:
            refuse("--rope-theta: is missing, as %s has no rope_theta", self.path)

    def _read_pairing(self):
        options, family = self.options, self.family
        if family.pairing is None:
            if options.pairing is None:
                text = "--pairing: is missing: it is not known how models of type '%.64s' (%s) pair elements"
                refuse(text, self.rotation.model_type or "", self.path)
            return
        self._agree("pairing", family.pairing, "model_type")
        if (family.pairing_out or family.inverse) and options.inverse:
            text = (
                "--inverse: would read the pairs in the order of the model's input; to undo the rotation of %s, use "
                "--backward"
            )
            refuse(text, self.rotation.model_type)
        if family.pairing_out:
            self._agree("pairing_out", family.pairing_out, "model_type")
        options.inverse = family.inverse or options.inverse

    # -- The window --

    def says_window(self):
        """Whether the config, or the class of its model, determines how much of a head rotates."""
        if self.family.pairing is not None or any(self.rotation.sizes[key] is not None for key in _WIDTH_KEYS):
            return True
        with self.refusing():
            return self.rotation.partial() is not None

    def check_width(self, heads, specified):
        """Returns how many elements of these heads rotate. `specified`: the command line's width, None if it has none."""
        if not self.says_window():
            if specified is None:
                text = "--rotary-dim: is missing: it is not known how much of a head rotates in models of type '%.64s' (%s)"
                refuse(text, self.rotation.model_type or "", self.path)
            return specified
        with self.refusing():
            widths = {self._width(head) for head in heads}
        if len(widths) > 1:
            refuse(
                "--config: heads have different sizes, %d and %d elements, of which different numbers rotate: %s",
                min(heads),
                max(heads),
                widths,
            )
        width = widths.pop()
        if specified not in (None, width):
            refuse("--rotary-dim: contradicts %s, with which it is %d", self.path, width)
        return width

    def _width(self, head):
        """Returns the width in heads of this size, which replaces head_dim unless the config has qk_rope_head_dim."""
        sizes = self.rotation.sizes
        if sizes["qk_rope_head_dim"] is None:
            self.rotation.sizes = {**sizes, "head_dim": head}
        try:
            return self.rotation.rotary_dim()
        finally:
            self.rotation.sizes = sizes

    # -- Axes --

    def has_axes(self):
        """Whether positions of several axes, if the file has them, have a meaning for this model."""
        if not self.uses_axes:
            return False
        if self.options.axis_map is not None:
            return self._sections() is not None
        with self.refusing():
            return has_axes(self.rotation)

    def _sections(self):
        return self.options.axis_sections or self.rotation.rope.get("mrope_section")

    def pair_axis(self, pairs):
        """Returns the axis of each pair."""
        options = self.options
        with self.refusing():
            if options.axis_map is None:
                return read_axes(self.rotation, pairs)
            specified = pair_axis(options.axis_map, self._sections())
            try:
                known = read_axes(self.rotation, pairs)
            except Error as error:
                if error.argument != "mrope_interleaved":
                    raise
                known = None  # the order is unknown
        if known not in (None, specified):
            refuse("--axis-map: contradicts %s: mrope_section", self.path)
        return specified


def _has_axes(group):
    """Whether the tensors of a group have positions of several axes."""
    ids, table = group.get("position_ids"), group.get("cos") or group.get("freqs")
    if ids is not None and len(ids.shape) == 3 and ids.shape[0] > 1:
        return True
    return table is not None and len(table.shape) == 4 and table.shape[0] == 3


class _Refusing:
    """Turns errors of the readers of configs into refusals that name the config's file."""

    def __init__(self, path):
        self.path = path

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if isinstance(error, Error):
            refuse_file(self.path, "%s", error.renamed({"layer_type": "--layer-type"}))
